"""Numba's compiler with a robust cache, and its threads, which sleep while they wait.

Threads share loops by :func:`on_all_threads`. Numba's ``parallel=True`` would take twice as long to
compile.

The threads of the FFT, and OpenMM's threads between evaluations, use the same cores as Numba's
threads; waiting threads must therefore not spin. OpenMP reads the environment when Numba starts or
counts its threads for the first time, so all of the package imports these functions from here.

Numba's own cache raises an error on import where it finds no writable folder, and in every call
while its files are damaged or the disk is full. It passes machine code to LLVM unchecked, so that a
damaged file ends the process. The cache here adds a checksum to each file. Files that cannot be
read are compiled again; code that cannot be stored is used by the present process only.
"""

import hashlib
import inspect
import logging
import os
import pickle
from collections.abc import Callable, Collection
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numba
from llvmlite import ir
from numba import get_num_threads, set_num_threads, types
from numba.core import cgutils
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.callconv import errcode_t, excinfo_ptr_t
from numba.core.codegen import JITCodeLibrary
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic
from numba.np.ufunc import parallel as numba_threads

__all__ = [
    "at_most_threads",
    "fft_workers",
    "finish_only",
    "get_num_threads",
    "is_kept",
    "njit",
    "on_all_threads",
    "portion",
    "types_of",
]

THREADED = 2**17
"""Size of arrays from which Fourier transforms use several threads."""

_log = logging.getLogger("fmm_openmm")
_warned = False


def njit(cache: bool = False, **options) -> Callable:
    """``numba.njit`` with a cache that tolerates damaged files, a full disk and missing folders.

    Args:
        cache: store compiled code in the folder that Numba chooses.
        options: options of ``numba.njit``.
    """
    compiled = numba.njit(**options)

    def decorated(function: Callable) -> Callable:
        dispatcher = compiled(function)
        if cache and dispatcher is not function:  # as it is with NUMBA_DISABLE_JIT
            try:
                dispatcher._cache = _Cache(function)  # as `dispatcher.enable_caching()` does
            except RuntimeError as error:
                _warn_once(f"Numba keeps no compiled kernels ({error})")
        return dispatcher

    return decorated


def on_all_threads(cache: bool = False, **options) -> Callable:
    """Decorator of a function that all threads run, each for its portion of a loop.

    The first parameter of the function is ``thread``, the number of the thread and the number of
    threads, for :func:`portion`; callers give the others. Nothing is returned.

    Args:
        cache: see :func:`njit`.
        options: options of ``numba.njit``.
    """

    def decorated(function: Callable) -> Callable:
        name = function.__qualname__
        function.__qualname__ += ".portion"  # see `finish_only`
        body = njit(**options, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
        if body is function:  # as it is with NUMBA_DISABLE_JIT
            return partial(function, (0, 1))
        _, *names = inspect.signature(function).parameters
        given = ", ".join(names)
        source = f"def {function.__name__}({given}): _run(body, ({given},))"
        scope = {"_run": _run, "body": body, "__name__": function.__module__}
        exec(compile(source, function.__code__.co_filename, "exec"), scope)
        entry = scope[function.__name__]
        entry.__qualname__, entry.__doc__ = name, function.__doc__
        line = function.__code__.co_firstlineno
        entry.__code__ = entry.__code__.replace(co_firstlineno=line)
        return njit(cache, **options, nogil=True, no_cfunc_wrapper=True)(entry)

    return decorated


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
def portion(count, thread):
    """The portion of ``range(count)`` that is a thread's."""
    number, threads = thread
    return range(count * number // threads, count * (number + 1) // threads)


@intrinsic
def _run(typing_context, body, arguments):
    """Call ``body(thread, *arguments)`` on every thread that Numba may use. An exception of any is
    raised when all have ended."""
    types_of_body = (types.UniTuple(types.intp, 2), *arguments)
    called = body.get_call_type(typing_context, types_of_body, {})

    def generate(context, builder, signature, values):
        compiled = body.dispatcher.get_compile_result(called)
        context.add_linking_libs([compiled.library])
        numba_threads._launch_threads()  # defines the functions of the threads
        integer, pointer = context.get_value_type(types.intp), cgutils.voidptr_t
        integers = integer.as_pointer()

        def declared(name, result, *parameters):
            kind = ir.FunctionType(result, parameters)
            return cgutils.get_or_insert_function(builder.module, kind, name)

        threads = builder.call(declared("get_num_threads", integer), [])
        shared_type = ir.LiteralStructType([values[1].type, integer, errcode_t, excinfo_ptr_t])
        shared = builder.alloca(shared_type)
        fields = [cgutils.gep_inbounds(builder, shared, 0, k) for k in range(4)]
        builder.store(values[1], fields[0])
        builder.store(threads, fields[1])
        builder.store(errcode_t(0), fields[2])

        # what a thread calls: it finds its number as the distance of a pointer from `shared`, and
        # some threading layers give it several numbers
        kind = ir.FunctionType(ir.VoidType(), [pointer.as_pointer(), integers, integers, pointer])
        loop = ir.Function(builder.module, kind, f"{builder.function.name}.loop")
        loop.linkage = "internal"
        inner = ir.IRBuilder(loop.append_basic_block())
        places, counts, _, data = loop.args
        first = inner.sub(*(inner.ptrtoint(p, integer) for p in (inner.load(places), data)))
        data = inner.bitcast(data, shared_type.as_pointer())
        own = [cgutils.gep_inbounds(inner, data, 0, k) for k in range(4)]
        given, count = inner.load(own[0]), inner.load(own[1])
        with cgutils.for_range(inner, inner.load(counts)) as each:
            number = inner.add(first, each.index)
            thread = context.make_tuple(inner, called.args[0], [number, count])
            status, _ = context.call_internal_no_propagate(
                inner,
                compiled.fndesc,
                called,
                [thread, *cgutils.unpack_tuple(inner, given)],
            )
            with cgutils.if_unlikely(inner, status.is_error):
                inner.store(status.excinfoptr, own[3])
                inner.store(status.code, own[2])
        inner.ret_void()

        data = builder.bitcast(shared, pointer)
        one = cgutils.alloca_once_value(builder, integer(1))
        sizes = cgutils.alloca_once_value(builder, threads)
        places = cgutils.alloca_once_value(builder, data)
        run = declared("numba_parallel_for", ir.VoidType(), *[pointer] * 5, *[integer] * 3)
        with builder.if_else(builder.icmp_signed("==", threads, integer(1))) as (alone, together):
            with alone:
                builder.call(loop, [places, sizes, one, data])
            with together:
                given = [builder.bitcast(each, pointer) for each in (loop, places, sizes, one)]
                builder.call(run, [*given, data, integer(0), integer(1), threads])
        code = builder.load(fields[2])
        with cgutils.if_unlikely(builder, builder.icmp_signed("!=", code, errcode_t(0))):
            status = context.call_conv._get_return_status(builder, code, builder.load(fields[3]))
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.none(body, arguments), generate


@contextmanager
def at_most_threads(count: int | None):
    """Context manager in which evaluations of the calling thread use at most ``count`` threads; all
    of the process where it is None."""
    usual = get_num_threads()
    set_num_threads(min(usual, count or usual))
    try:
        yield
    finally:
        set_num_threads(usual)


def fft_workers(size: int) -> int:
    """Number of threads for the Fourier transform of an array of a size: to wake one takes longer
    than the transform of a small array."""
    return get_num_threads() if size >= THREADED else 1


def _compute_alone() -> None:
    """Have this process, forked from one whose threads run already, compute on its main thread
    alone: it lacks the others, and GNU OpenMP would end it in its first parallel loop."""
    if numba_threads._is_initialized and numba.threading_layer() == "omp":
        set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compute_alone)


def types_of(signature: str) -> tuple:
    """Numba types of arguments, from their abbreviations."""
    return normalize_signature(f"void({signature})")[0]


def is_kept(dispatcher, signature: tuple) -> bool | None:
    """Whether the function compiled for a signature is on disk; None without a cache."""
    return (
        dispatcher._cache.holds(signature, dispatcher.targetctx)
        if isinstance(dispatcher._cache, _Cache)
        else None
    )


def finish_only(names: Collection[str]) -> None:
    """Have Numba optimise and assemble functions of these names only, and others as parts of them;
    this saves a tenth of the time. For processes that only compile into the cache."""

    def skip_others(method):
        def finished(library):
            if library.name in names:
                method(library)

        return finished

    for step in ("_optimize_final_module", "_finalize_specific"):
        setattr(JITCodeLibrary, step, skip_others(getattr(JITCodeLibrary, step)))


class _Cache(FunctionCache):
    """Compiled versions of a function on disk. Failures to read or write are logged and cost only
    time."""

    def __init__(self, function: Callable):
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = _Files(
            self._cache_path, self._impl.filename_base, locator.get_source_stamp()
        )

    def load_overload(self, sig, target_context):
        """The function compiled for a signature; None if its file is missing or damaged."""
        try:
            numba_threads._launch_threads()  # defines functions that the machine code calls
            return super().load_overload(sig, target_context)
        except Exception as error:  # a damaged pickle may raise any
            path = self._cache_file.last_read
            _log.warning(
                "%s is ignored (%s: %s): it is compiled anew", path, type(error).__name__, error
            )
            with suppress(OSError):
                path.unlink()
            return None

    def holds(self, sig, target_context) -> bool:
        """Whether :meth:`load_overload` would find a file."""
        try:
            return self._index_key(sig, target_context.codegen()) in self._cache_file._load_index()
        except Exception:  # a damaged index may raise any
            return False

    def save_overload(self, sig, data):
        """Store the function compiled for a signature; after a failure nothing is stored any
        more."""
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a damaged index may raise any
            self.disable()
            _warn_once(f"Numba keeps no compiled kernels in {self.cache_path} ({error})")


class _Files(IndexDataCacheFile):
    """Numba's cache files, with a SHA-256 appended to those of machine code."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        # files of Numba's own format, or with another `_run`, count as another version's
        self._version += ", with SHA-256 and without threads for one"
        self.last_read = Path(self._index_path)

    def _dump(self, obj) -> bytes:
        data = super()._dump(obj)
        # Numba reads the index up to the end of the pickle
        return data + hashlib.sha256(data).digest()

    def _load_index(self) -> dict:
        self.last_read = Path(self._index_path)
        return super()._load_index()

    def _load_data(self, name: str):
        self.last_read = Path(self._data_path(name))
        content = self.last_read.read_bytes()
        length = len(content) - hashlib.sha256().digest_size
        if hashlib.sha256(content[:length]).digest() != content[length:]:
            raise ValueError("its checksum is wrong")
        return pickle.loads(content[:length])


def _warn_once(reason: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        _log.warning(
            "%s: each process compiles its own; "
            "the variable NUMBA_CACHE_DIR may name another folder",
            reason,
        )
