"""The mathematics of differential privacy, without rounds, networks or recipes.

    integers     vectors of bounded norm on a grid of integers, so that sums are exact
    noise        integers with the distribution of a rounded or of a discrete Gaussian, from random bytes, exactly
    gaussian     ε of the Gaussian mechanism without subsampling, in closed form
    renyi        Rényi divergences: subsampled Gaussian, sums of discrete Gaussians, their conversion to ε
    accounting   the sharp ε of the subsampled Gaussian, by dp-accounting (extra `privacy`); σ for a wanted ε
    journal      what several runs on one data set have spent
    audit        lower bounds on ε from replays of a mechanism; an estimate from canaries
    statement    what a run promises, as a signed value

Nothing here draws from a generator that others could repeat: whoever calls hands over a function that draws bytes.
"""
