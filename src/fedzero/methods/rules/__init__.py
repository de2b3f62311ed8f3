"""Rules turn a round's scalars into a step of the model: one rule per file, and the chain that they form."""

from fedzero.methods.rules.contract import At, Fact, KernelRule, Rule, RuleState, RuleTraits, Step

__all__ = ["At", "Fact", "KernelRule", "Rule", "RuleState", "RuleTraits", "Step"]
