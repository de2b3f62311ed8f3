"""How a site starts its process for a job: as FLARE does, or by the fork server of this machine where there is one."""

from __future__ import annotations

import os
import shlex
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.utils.job_launcher_utils import get_credential_env

from fedzero.deploy.flare.forking import VARIABLE, Forked
from fedzero.deploy.flare.processes import SITE_JOB


class JobLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Named in the kit of a site, in the place of FLARE's."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> Any:
        if VARIABLE not in os.environ:
            return super().launch_job(job_meta, fl_ctx)
        command = shlex.split(self.get_command(job_meta, fl_ctx))
        credentials = get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})
        arguments = command[command.index(SITE_JOB) + 1 :]
        return ProcessHandle(process_adapter=Forked(SITE_JOB, arguments, {**os.environ, **credentials}))
