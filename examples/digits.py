"""A model of your own, ten clients, twelve lines: the digits of scikit-learn, learned from forward passes alone."""

import torch
from sklearn.datasets import load_digits

import fedzero

x, y = (torch.tensor(array) for array in load_digits(return_X_y=True))
x = x.float() / 16
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
run = fedzero.train(model, clients=[(x[i:1500:10], y[i:1500:10]) for i in range(10)],
                    loss=torch.nn.functional.cross_entropy, test=(x[1500:], y[1500:]),
                    metrics={"accuracy": fedzero.accuracy}, rounds=300, batch=64, out="runs/digits",
                    method=fedzero.DeComFL(rate=0.3, directions=50, distribution="rademacher"))  # fmt: skip
print(run)
