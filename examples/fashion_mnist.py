"""Fashion-MNIST with a small convolutional network. Needs the data: contdrop data get fashion-mnist

contdrop compare examples/fashion_mnist.py
"""

from torch import nn

from contdrop import lab
from contdrop.replication import datasets as data_sets


def data():
    found = data_sets.load("fashion-mnist")
    train, test = (found.train_images, found.train_labels), (found.test_images, found.test_labels)
    return lab.Data(train=train, test=test, validation=1000, subset=4000)


def forward(network, batch):
    return network(batch[0].float() / 255)


def model():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(512, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10)),
    )


study = lab.Study(
    "gallery-fashion-mnist", data, model, forward=forward, epochs=6, runs=6, training=lab.Training(evaluate="last")
)
