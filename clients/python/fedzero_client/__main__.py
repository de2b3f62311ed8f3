"""python -m fedzero_client"""

import sys

from fedzero_client.cli import main

sys.exit(main())
