# %% [markdown]
# # Your own model, trained by what clients evaluate
#
# A data frame, ten clients that are unlike, and no gradient. `pip install fedzero pandas` is all that this needs.

# %%
import numpy
import pandas
import torch

import fedzero

torch.manual_seed(0)
frame = pandas.DataFrame(numpy.random.default_rng(0).normal(size=(600, 4)), columns=["age", "dose", "weight", "pulse"])
frame["finding"] = frame.idxmax(axis=1)
frame.head(3)

# %% [markdown]
# What does a long run take? Two rounds say so, and nothing is kept.

# %%
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
data = {"label": "finding", "partition": "shards", "count": 10, "validation": 0.2}
cross_entropy = torch.nn.functional.cross_entropy
print(fedzero.estimate(fedzero.train, model, frame, **data, loss=cross_entropy, rounds=5000))

# %% [markdown]
# Each client keeps a fifth of its rows for validation. A notebook shows a run by itself.

# %%
run = fedzero.train(
    model,
    frame,
    **data,
    loss=cross_entropy,
    metrics={"accuracy": fedzero.accuracy},
    rounds=150,
    out="runs/model",
    progress=False,
)
run

# %%
ax = run.plot(axis="bytes")
# %% [markdown]
# Who has what: two classes a client.

# %%
ax = run.plot_clients()
