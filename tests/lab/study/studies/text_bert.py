"""BERT on short texts: a collate function with masks, and batches of similar length."""

import torch
from transformers import BertConfig, BertForSequenceClassification

from contdrop import lab

WORDS = 50


def make(number):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 16, (number,), generator=generator).tolist()
    return [torch.randint(2, WORDS, (length,), generator=generator) for length in lengths]


def data():
    texts = make(80)
    items = [(text, int((text < WORDS // 2).float().mean() > 0.5)) for text in texts]
    return lab.Data(train=items[:60], test=items[60:], validation=0.2, collate=collate, batches=by_length)


def collate(items):
    ids = torch.nn.utils.rnn.pad_sequence([text for text, _ in items], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([label for _, label in items])}


def by_length(dataset, generator):
    order = sorted(range(len(dataset)), key=lambda index: len(dataset[index][0]))
    batches = [order[start : start + 8] for start in range(0, len(order), 8)]
    return [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]


def model():
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=2, **size))


study = lab.Study("text-bert", data, model, batch_size=8, epochs=2, runs=2)
