"""Replaces methods of mpi4py, torch.distributed and hpccoll by methods that record their calls.

The methods of a package are replaced when the program imports this package. As the methods of mpi4py's own classes are
replaced, communicators keep their class, and the calls of other libraries are recorded, too. A call of MPI that hpccoll
or torch makes during a recorded call has no entry of its own.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hpccoll.native import TracedCall, replace_attribute
from hpccoll.profile.layout import NOT_GIVEN, EntryFlag
from hpccoll.profile.recorder import ProfileRecorder, RecordingOptions
from hpccoll.profile.traced_methods import TracedMethod, list_methods

_MPI, _OWN, _DROP_IN, _TORCH = "mpi4py.MPI", "hpccoll.communicator", "hpccoll.mpi4py.communicators", "torch.distributed"
_CLOCK_LIMIT_S = 2.5  # seconds per round of clock synchronization; on slow networks it would take minutes
_OWN_GROUPS, _OWN_WORKS = "hpccoll.torch.group_operations", "hpccoll.torch.work"


class Instrumentation:
    """Records the communication of the program that this process runs, by replacing methods of communicators.

    Args:
        options: what the recording contains, and its directory.
    """

    def __init__(self, options: RecordingOptions) -> None:
        self.options = options
        self.recorder: ProfileRecorder | None = None
        self._work_methods: dict[str, Any] = {}  # the original methods of hpccoll's Work by name
        self._traces_torch = False
        self._hooks: dict[str, Callable[[ModuleType], None]] = {
            _MPI: self._trace_mpi,
            _OWN: self._trace_own,
            _DROP_IN: self._trace_drop_in,
            _TORCH: self._trace_torch,
        }

    def install(self) -> None:
        """Replace methods of mpi4py, torch.distributed and hpccoll now if they are imported, else at their import."""
        sys.meta_path.insert(0, _HookFinder(self._hooks))
        for name, hook in self._hooks.items():
            if name in sys.modules:
                hook(sys.modules[name])

    def start(self, rank: int, size: int) -> ProfileRecorder:
        """Return the recorder of this process, rank `rank` of `size`; the first call creates it and its files."""
        if self.recorder is None:
            self.recorder = ProfileRecorder(self.options, rank, size)
            atexit.register(self.recorder.end)
        return self.recorder

    def _trace_mpi(self, module: ModuleType) -> None:
        """Replace methods of mpi4py, the module `mpi4py.MPI`, as soon as MPI is initialized."""
        if module.Is_initialized():
            self._start_mpi(module)
            return
        for name in ("Init", "Init_thread"):
            original = getattr(module, name)

            def initialize(*args: Any, _original: Callable[..., Any] = original) -> Any:
                """Initialize MPI by the original function, then start recording. Collective."""
                result = _original(*args)
                self._start_mpi(module)
                return result

            setattr(module, name, initialize)

    def _start_mpi(self, module: ModuleType) -> None:
        """Start the recorder on the common clock of the job, and replace methods of mpi4py. Collective."""
        if self.recorder is not None:
            return
        world = module.Intracomm(module.COMM_WORLD)  # calls of the drop-in's own COMM_WORLD would be recorded
        recorder = self.start(world.Get_rank(), world.Get_size())
        _write_job_properties(recorder, world)
        recorder.set_constants(module.ANY_SOURCE, module.ANY_TAG, module.PROC_NULL)
        recorder.begin()
        classes = [module.Comm, module.Intracomm, module.Topocomm, module.Cartcomm, module.Request, module.Prequest]
        _replace_methods(recorder, classes)
        _forget_freed(recorder, module.Comm, ("Free", "Disconnect", "free"))
        _count_pickled(recorder, module)
        for name in (_OWN, _DROP_IN):
            if name in sys.modules:
                self._hooks[name](sys.modules[name])

    def _trace_drop_in(self, module: ModuleType) -> None:
        """Replace the collectives of hpccoll's drop-in for mpi4py, which the module `module` defines."""
        if self.recorder is not None:
            classes = [cls for top in module.list_intracommunicator_classes() for cls in top.__mro__]
            own = [cls for cls in dict.fromkeys(classes) if cls.__module__.startswith("hpccoll.")]
            _replace_methods(self.recorder, own, owners={"Comm", "Intracomm"})

    def _trace_own(self, module: ModuleType) -> None:
        """Replace methods of hpccoll's class `Communicator`, which `module` defines, and of its class `Work`."""
        if self.recorder is not None:
            from hpccoll.runtime.work import Work

            own = [cls for cls in module.Communicator.__mro__ if cls is not object]
            _replace_methods(self.recorder, own, owners={"Communicator"})
            self._work_methods = {name: vars(Work)[name] for name in ("wait", "test")}
            _replace_methods(self.recorder, [Work], owners={"Work"})
            _forget_freed(self.recorder, module.Communicator, ("close",))

    def _trace_torch(self, module: ModuleType) -> None:
        """Let `init_process_group` of torch.distributed, the module `module`, also start the recording."""
        original = module.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            """Initialize the default process group by torch's function, then start recording. Collective."""
            result = original(*args, **kwargs)
            self._start_torch(module)
            return result

        for holder in (module, module.distributed_c10d, sys.modules.get("torch.distributed.device_mesh")):
            if holder is not None and getattr(holder, "init_process_group", None) is original:
                setattr(holder, "init_process_group", init_process_group)  # noqa: B010 - mypy knows no such attribute

    def _start_torch(self, module: ModuleType) -> None:
        """Start the recorder unless it runs, and let it record torch's groups, works and functions. Collective.

        The Reducer of DistributedDataParallel is recorded, too.
        """
        if self.recorder is None:
            self._start_without_mpi(module)
        if self.recorder is None:
            return
        from hpccoll.profile.ddp import record_ddp
        from hpccoll.profile.functional import record_functional

        classes, works = [module.ProcessGroup], [module.Work]
        if _OWN_GROUPS in sys.modules:
            classes.append(sys.modules[_OWN_GROUPS].GroupOperations)
            works.append(sys.modules[_OWN_WORKS].TorchWork)
        for cls in (module.ProcessGroup, module.Work):
            _keep_inherited(cls)
        _replace_methods(self.recorder, classes, owners={"ProcessGroup"})
        _replace_methods(self.recorder, works, owners={"TorchWork"})
        if not self._traces_torch:
            self._traces_torch = True
            _replace_functions(self.recorder, module)
            record_ddp(self.recorder.trace, _find_code("ProcessGroup", "allreduce"), _find_code("TorchWork", "wait"))
            record_functional(functools.partial(make_traced, self.recorder))
            for work in works[1:]:
                self._leave_work()  # TorchWork, whose calls are recorded, calls its methods
                _trace_futures(self.recorder, work)

    def _start_without_mpi(self, module: ModuleType) -> None:
        """Start the recorder of a job without MPI, on a clock that all ranks share. Collective.

        The shared clock is that of the host, or that of rank 0 if the ranks are on several hosts.
        """
        from hpccoll.profile.store_clock import synchronize_by_store

        recorder = self.start(module.get_rank(), module.get_world_size())
        store = module.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public name
        model = synchronize_by_store(store, recorder.rank, recorder.size, os.uname().nodename)
        if model is not None:
            recorder.set_clock(model, model.error_s)
        recorder.begin()

    def _leave_work(self) -> None:
        """Restore the methods of hpccoll's `Work`, which `TorchWork` calls, so that no call is recorded twice."""
        from hpccoll.runtime.work import Work

        for name, original in self._work_methods.items():
            replace_attribute(Work, name, original)


def make_traced(recorder: ProfileRecorder, code: int, method: TracedMethod, original: Any) -> Any:
    """Return a method that calls `original` and records the call; a class method, if `original` is one.

    Args:
        recorder: describes call sites and communicators, and has the trace to which calls are written.
        code: the index of `method` in `list_methods`, by which entries name the method.
        method: the method, with the positions of its recorded arguments.
        original: the function or class method that a call carries out.
    """
    is_class_method = isinstance(original, classmethod)
    function = original.__func__ if is_class_method else original
    traced = TracedCall(
        recorder.trace, function, code, int(method.form), method.flags, method.default_peer, method.default_tag,
        method.counts_pickled, True, method.places,
    )  # fmt: skip
    return classmethod(traced) if is_class_method else traced


def _replace_methods(recorder: ProfileRecorder, classes: Sequence[type], owners: set[str] | None = None) -> None:
    """Replace methods of classes by methods that record their calls; inherited methods are not replaced.

    Args:
        owners: names of classes in `list_methods`, whose methods are replaced; None for the name of each class itself.
    """
    for code, method in enumerate(list_methods()):
        for cls in classes:
            if (cls.__name__ == method.owner if owners is None else method.owner in owners) and method.name in vars(
                cls
            ):
                original = vars(cls)[method.name]
                if (
                    not isinstance(getattr(original, "__func__", original), TracedCall)
                    and type(original) is not TracedCall
                ):
                    replace_attribute(cls, method.name, make_traced(recorder, code, method, original))


def _replace_functions(recorder: ProfileRecorder, module: ModuleType) -> None:
    """Replace the functions of torch.distributed, the module `module`, that communicate in C++."""
    for code, method in enumerate(list_methods()):
        if method.owner == module.__name__ and hasattr(module, method.name):
            setattr(module, method.name, make_traced(recorder, code, method, getattr(module, method.name)))


def _keep_inherited(cls: type) -> None:
    """Give the Python subclasses of a class of torch the methods that they inherit, before these are replaced.

    Otherwise, the subclasses would inherit the replacement, which torch takes for an override by the subclass: a call
    would lead from the replacement to torch's own method, and from there back to the replacement, without end.
    """
    names = {method.name for method in list_methods()} & vars(cls).keys()
    for name in (name for name in names if type(vars(cls)[name]) is not TracedCall):
        for subclass in _list_subclasses(cls):
            if getattr(subclass, name) is getattr(cls, name):
                setattr(subclass, name, vars(cls)[name])


def _list_subclasses(cls: type) -> list[type]:
    """Return the direct and indirect subclasses of a class."""
    direct: list[type] = cls.__subclasses__()
    return [*direct, *(subclass for parent in direct for subclass in _list_subclasses(parent))]


def _find_code(owner: str, name: str) -> int:
    """Return the index in `list_methods` of the method `name` of the class `owner`."""
    return next(code for code, each in enumerate(list_methods()) if (each.owner, each.name) == (owner, name))


def _forget_freed(recorder: ProfileRecorder, cls: type, names: Sequence[str]) -> None:
    """Let the methods `names` of `cls`, which free a communicator, also remove it from the recorder.

    MPI may give the handle of a freed communicator to a new one.
    """
    for name in names:
        owner = next(base for base in cls.__mro__ if name in vars(base))
        original = vars(owner)[name]

        def release(self: Any, *args: Any, _original: Any = original) -> Any:
            """Let the recorder forget the communicator `self`, then free it by the original method."""
            recorder.trace.forget(self)
            return _original(self, *args)

        release.__name__, release.__doc__ = name, original.__doc__
        replace_attribute(owner, name, release)


def _trace_futures(recorder: ProfileRecorder, cls: type) -> None:
    """Record the end of each hpccoll operation for whose future DistributedDataParallel waits in C++.

    `cls` is hpccoll's class of operations in torch, `TorchWork`. A wait is assumed to begin at the end of the rank's
    previous call, because the last bucket of gradients is ready at the end of the backward pass.
    """
    trace, original = recorder.trace, vars(cls)["complete_future"]
    code = _find_code("TorchWork", "wait")

    def complete_future(self: Any) -> bool:
        """If the work `self` is done, complete its future, record its end once, and return true; else return false."""
        done: bool = original(self)
        if done and self.has_future and not getattr(self, "is_profiled", False):
            self.is_profiled = True
            times = trace.last_end_ns, time.perf_counter_ns()
            trace.write(code, *times, 0, id(self), 0, NOT_GIVEN, 0, trace.last_site_id, EntryFlag.COMPLETE)
        return done

    get_outcome = vars(cls)["_get_outcome"]

    def get_outcome_unrecorded(self: Any, future: object) -> Any:
        """Return the result of the work `self` for its `future`, which has ended, without recording a wait."""
        was_active, trace.is_active = trace.is_active, False  # the operation has ended without a wait
        try:
            return get_outcome(self, future)
        finally:
            trace.is_active = was_active

    replace_attribute(cls, "complete_future", complete_future)
    replace_attribute(cls, "_get_outcome", get_outcome_unrecorded)


def _count_pickled(recorder: ProfileRecorder, module: ModuleType) -> None:
    """Let mpi4py's pickle count the bytes of the objects that a call sends, or else of those that it receives."""
    trace = recorder.trace

    def dumps(obj: Any, *args: Any) -> Any:
        """Pickle an object, and count its bytes as sent by the current call."""
        data = pickle.dumps(obj, *args)
        trace.pickled_bytes += len(data)
        return data

    def loads(data: Any, *args: Any) -> Any:
        """Unpickle an object; count its bytes as received by the current call if the call has sent none."""
        if not trace.pickled_bytes:
            trace.pickled_bytes = len(data)
        return pickle.loads(data, *args)  # noqa: S301 - mpi4py's own function

    module.pickle.__init__(dumps, loads, module.pickle.PROTOCOL)


def _write_job_properties(recorder: ProfileRecorder, world: Any) -> None:
    """Write the model of the common clock of the job's ranks, and the job's tuning site. Collective."""
    from hpccoll.measure.clock import JobClock
    from hpccoll.runtime import job
    from hpccoll.selection.tuning_files import describe_site

    layout = job.detect_layout(world)
    clock = JobClock(world, layout, None, limit_s=_CLOCK_LIMIT_S)
    recorder.set_clock(clock.current.model, clock.error_s)
    oversubscribed = layout.oversubscribed
    site = describe_site(job.get_mpi_library(), layout.ranks_per_node, oversubscribed=oversubscribed)
    recorder.set_tuning_site(site, oversubscribed=oversubscribed)


class _HookFinder(MetaPathFinder):
    """Finds modules as Python does, and calls a function after the import of certain modules.

    Args:
        hooks: the functions by the names of modules; each takes the imported module.
    """

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._hooks, self._searching = hooks, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module that has a function in `hooks`; None for other modules.

        Python calls this method at each import. The loader of the specification calls the function after the import.
        """
        hook = self._hooks.get(fullname)
        if hook is None or self._searching:
            return None
        self._searching = True
        try:
            specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
            spec = next((spec for spec in specs if spec is not None), None)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _HookLoader(spec.loader, hook)
        return spec


class _HookLoader(Loader):
    """Loads a module by another loader, then calls a function with the module.

    Args:
        loader: the other loader.
        hook: the function.
    """

    def __init__(self, loader: Loader, hook: Callable[[ModuleType], None]) -> None:
        self._loader, self._hook = loader, hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the new module that the other loader creates; None if Python is to create it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the code of the module by the other loader, then call the function with the module."""
        self._loader.exec_module(module)
        self._hook(module)
