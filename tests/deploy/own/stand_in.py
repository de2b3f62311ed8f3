"""A task whose model and data are an object of the site's, found by name: a distribution that server and sites have."""

from fedzero import BuildContext, FedzeroError, Problem, Task


class StandIn(Task, tag="stand-in"):
    """Whatever a site has under this name."""

    name: str

    def build(self, clients: int, context: BuildContext) -> Problem:
        if self.name not in context.functions:
            raise FedzeroError(f"nothing is known here of {self.name!r}")
        return context.functions[self.name].build(clients, context, self)
