"""The model: parameters as views and folds, updates, schedules, files of weights, devices."""
