"""What differential privacy is spent on a data set, over all runs: charges, the journal of them, and which data are one
data set."""
