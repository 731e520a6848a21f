"""Makes `init_process_group("hpccoll")` work without `import hpccoll.torch`: `import torch` calls `register`.

Torch calls the functions of the entry point group `torch.backends` at the end of `import torch`. `register` imports
no other module of hpccoll, and leaves other backends as they are: hpccoll.torch is imported when `init_process_group`
names the backend. From torch 2.14 on, torch.distributed has an entry point group for backends. Torch loads entry points
of backends only after it has read RANK and MASTER_ADDR: too late, because hpccoll.torch provides these variables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


def register() -> None:
    """Let `init_process_group` import hpccoll.torch if it names the backend "hpccoll"; torch calls this function.

    torch calls `register`, an entry point, at `import torch`. `register` replaces the functions in torch's table of
    rendezvous handlers, and does not import hpccoll.torch itself. hpccoll.torch is not imported if a `store` is passed
    to `init_process_group`, or if only `new_group` names the backend.
    """
    module = sys.modules.get("torch.distributed.rendezvous")  # absent if torch was built without torch.distributed
    handlers: dict[str, Callable[..., Any]] = getattr(module, "_rendezvous_handlers", {})
    for scheme, handler in handlers.items():
        handlers[scheme] = _import_first(handlers, scheme, handler)


def _import_first(
    handlers: dict[str, Callable[..., Any]], scheme: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a rendezvous handler that calls `original` or, for the backend "hpccoll", imports hpccoll.torch first.

    The import may replace the handler in `handlers`, torch's table of handlers by URL scheme; the handler for `scheme`
    in this table is then called in place of `original`.
    """

    @wraps(original)
    def rendezvous(url: str, **options: Any) -> Any:
        """Yield the results of torch's rendezvous handler or, for the backend "hpccoll", of hpccoll.torch's handler."""
        handler = original
        if _is_backend_of_caller():
            import hpccoll.torch  # noqa: F401 - may replace the handler

            handler = handlers[scheme]
        yield from handler(url, **options)

    return rendezvous


def _is_backend_of_caller() -> bool:
    """Whether the local variable `backend` of init_process_group, which calls the rendezvous, names hpccoll.

    The caller of this function must not keep the frame of init_process_group: the frame refers to the rendezvous, and
    the cycle of references keeps the process group alive until Python ends, when Gloo's threads would abort the
    process.
    """
    return "hpccoll" in str(sys._getframe(2).f_locals.get("backend"))  # noqa: SLF001 - no argument has the backend
