"""A Hugging Face encoder, built from a configuration, on text that ships with scikit-learn.

The task is to identify the scikit-learn data set that a passage describes. Needs: pip install transformers

contdrop compare examples/text_encoder.py
"""

import importlib.resources
import re
import zlib

import torch
from transformers import BertConfig, BertForSequenceClassification

from contdrop import lab

WORDS = 2000  # number of hash buckets for words; 0 is padding
LENGTH = 24
SOURCES = (
    "breast_cancer",
    "california_housing",
    "covtype",
    "diabetes",
    "digits",
    "iris",
    "wine_data",
    "twenty_newsgroups",
)


def data():
    place = importlib.resources.files("sklearn.datasets") / "descr"
    items = []
    for label, name in enumerate(SOURCES):
        words = re.findall(r"[a-z]+", (place / f"{name}.rst").read_text(encoding="utf-8").lower())
        codes = [zlib.crc32(word.encode()) % (WORDS - 1) + 1 for word in words]
        # Passages do not overlap, so no part of a test passage was used in training.
        starts = range(0, len(codes) - LENGTH // 2, LENGTH)
        items += [(torch.tensor(codes[start : start + LENGTH]), label) for start in starts]
    return lab.Data(train=items, test=0.3, validation=0.2, collate=collate, stratify=[label for _, label in items])


def collate(items):
    texts = torch.nn.utils.rnn.pad_sequence([text for text, _ in items], batch_first=True)
    labels = torch.tensor([label for _, label in items])
    return {"input_ids": texts, "attention_mask": (texts > 0).long(), "labels": labels}


def model():
    size = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    return BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=len(SOURCES), **size))


study = lab.Study("gallery-text", data, model, batch_size=16, epochs=15, runs=6, training=lab.Training(clip=1.0))
