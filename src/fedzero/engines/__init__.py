"""Where clients are: in this process, on a cluster, in other processes.

Authors of engines import from here. An engine is a tagged value with a method `open`:

    class MyEngine(Engine, tag="my-engine"):
        @contextmanager
        def open(self, run: RunView) -> Iterator[Clients]: …

`fedzero new engine NAME` writes a package with an engine, `fedzero.testing.check_engine` tells whether it works.

A transport carries the orders of the engine `remote` to hosts in other processes. It has a method `open`, too:

    class MyTransport(Transport, tag="my-transport"):
        @contextmanager
        def open(self, program: Program, report: Report) -> Iterator[Link]:
            yield Correspondence(…)          # over any connection that sends and receives

`fedzero new transport NAME`, `fedzero.testing.check_transport`.
"""

from fedzero.engines.local import clients_here as clients_here
from fedzero.engines.local import local_clients as local_clients
from fedzero.engines.remote.correspondence import RELIABLE as RELIABLE
from fedzero.engines.remote.correspondence import Correspondence as Correspondence
from fedzero.engines.remote.correspondence import Heard as Heard
from fedzero.engines.remote.correspondence import Obedient as Obedient
from fedzero.engines.remote.transport import Gone as Gone
from fedzero.engines.remote.transport import Link as Link
from fedzero.engines.remote.transport import News as News
from fedzero.engines.remote.transport import Program as Program
from fedzero.engines.remote.transport import Report as Report
from fedzero.engines.remote.transport import Transport as Transport
from fedzero.engines.remote.transport import Waiting as Waiting
from fedzero.protocol.altered import Altered as Altered
from fedzero.protocol.engine import FOREVER as FOREVER
from fedzero.protocol.engine import Arrival as Arrival
from fedzero.protocol.engine import Clients as Clients
from fedzero.protocol.engine import Event as Event
from fedzero.protocol.engine import Joined as Joined
from fedzero.protocol.engine import Left as Left
from fedzero.protocol.engine import Rows as Rows
from fedzero.protocol.engine import Undelivered as Undelivered
from fedzero.protocol.outstanding import Outstanding as Outstanding
from fedzero.recipe.engines import Engine as Engine
from fedzero.recipe.view import RunView as RunView
