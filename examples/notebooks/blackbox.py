# %% [markdown]
# # Functions of three parties, minimised together
#
# Nobody shows a function to anybody. Every query is logged, and none is asked twice.

# %%
import numpy

import fedzero

centres = numpy.array([[1.0, -1.0, 0.5], [0.0, 1.0, 0.5], [-0.5, 0.0, 1.0]])
parties = [lambda x, c=c: float(((x - c) ** 2).sum() + 0.1 * numpy.cos(6 * x).sum()) for c in centres]
result = fedzero.minimise(parties, bounds=[(-3, 3)] * 3, budget=60)
print(result.x.round(3), round(result.value, 4), result.queries)

# %%
ax = result.plot_history()
# %% [markdown]
# What each party answered along a coordinate, and what a model of the mean says about it.

# %%
axes = result.plot_slice()
