"""Numbers with bounds, as fields of recipes and messages declare them; msgspec checks the bounds when it decodes."""

from typing import Annotated

from msgspec import Meta

Natural = Annotated[int, Meta(ge=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
Dimension = Annotated[int, Meta(ge=1, le=1 << 32)]
"""Arrays of so many numbers for each client have a size that a machine can at least refuse."""
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
PositiveFraction = Annotated[float, Meta(gt=0, le=1)]
ProperFraction = Annotated[float, Meta(ge=0, lt=1)]
