"""What becomes of a round's scalars: rules, one a file, and the chain that they make."""

from fedzero.methods.rules.contract import At, Fact, KernelRule, Rule, RuleState, RuleTraits, Step

__all__ = ["At", "Fact", "KernelRule", "Rule", "RuleState", "RuleTraits", "Step"]
