# %% [markdown]
# # A run is a file: replay it, check it, ship what it learned
#
# The packaged recipe `demo`, for a few rounds.

# %%
import fedzero

small = {"algorithm.directions": 5, "federation.clients": 20}
run = fedzero.run("demo", rounds=40, set=small, evaluate_every=5, out="runs/ledger", progress=False)
run

# %% [markdown]
# Hash chain, updates, digests and the model file: one changed byte would raise an error.

# %%
run.verify()
before = run.replay(20)
print({name: tuple(tensor.shape) for name, tensor in before.items()})

# %% [markdown]
# The fine-tune as a patch for everybody who has the base model, beside the model itself.

# %%
patch = run.patch("runs/demo.patch")
print(f"{patch.stat().st_size:,} bytes instead of {(run.folder / 'model.safetensors').stat().st_size:,}")

# %%
other = fedzero.run("demo", rounds=40, seed=1, set=small, evaluate_every=5, out="runs/other", progress=False)
ax = run.plot(other, metric="loss")
