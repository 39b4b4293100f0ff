"""Every program as data: complete, free of races, true to the kernels' signatures and bounds of
blocks, and serialisable. Needs no GPU."""

import re
import subprocess
from functools import cache

import numpy as np
import pytest

from fmm_openmm.backends.cuda import program as p
from fmm_openmm.backends.cuda.abi import MAGIC, VERSION
from fmm_openmm.backends.cuda.pipeline.description import build, parameter_block
from fmm_openmm.backends.cuda.pipeline.groups import far_shape
from fmm_openmm.backends.cuda.pipeline.virial import azimuth_program, operator_program
from fmm_openmm.backends.cuda.serial import serialise
from fmm_openmm.backends.cuda.source import kernel_files, kernel_folder, source_of
from fmm_openmm.box import BoxLattice, box_width
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.literature import layouts
from fmm_openmm.literature.layouts import Neighbourhood
from fmm_openmm.literature.operators import level
from fmm_openmm.specification import Specification
from fmm_openmm.stages import STAGES
from tests.compiler import COMPILER
from tests.support.programs import (
    CASES,
    CELL,
    COUNTS,
    WHOLE,
    Reader,
    of_groups,
    of_rank,
    of_sites,
    program,
)

SIGNATURE = re.compile(
    r'extern "C" __global__ void(?: __launch_bounds__\((.*?)\))?\s+(\w+)\((.*?)\)\s*\{', re.DOTALL
)
MAX_THREADS = 1024
"""Threads of a block without a launch bound."""

ANY_BLOCK = {"dft_columns", "m2l_rotation", "m2l_p4_symmetric", "m2l_p4_parity"}
"""Kernels of blocks with fewer threads than their bound, too."""


@cache
def preprocessed(source):
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    command = COMPILER, "-E", "-P", "-w", "-x", "c++", "-"
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


@cache
def signatures(source):
    """Parameters and launch bound of every kernel of a source."""
    found = {}
    for bounds, name, parameters in SIGNATURE.findall(preprocessed(source)):
        # threads, and then perhaps blocks of a multiprocessor
        threads = eval(bounds.partition(",")[0].replace("/", "//")) if bounds else MAX_THREADS
        found[name] = [" ".join(each.split()) for each in parameters.split(",")], threads
    return found


def signature(built, step):
    """The parameters of a launch's kernel, and the bound of its blocks."""
    file = built.kernels[step.kernel].file
    return signatures(source_of(file, built.macros))[step.kernel]


def accesses(built, step):
    """The buffers a step reads and those it writes, by its kernel's signature."""
    if isinstance(step, p.Memset):
        return set(), {step.buffer}
    if isinstance(step, p.Launch):
        pointers = [
            (a.buffer, "const" in text)
            for a, text in zip(step.arguments, signature(built, step)[0], strict=True)
            if "*" in text
        ]
        return {name for name, constant in pointers if constant}, {
            name for name, constant in pointers if not constant
        }
    return set(), set()


EXTERNAL = ("posq", "posq_correction", "atom_index", "force_buffer", "energy_buffer")
FLAGS = ("outside", "force_sums")


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def built(request):
    return program(*request.param)


SITES_FILLED = {"slot", "type", "start", "partner", "pairs", "cell"}
UNLISTED = {"row_start", "grid"}  # handed over, but not read
LAYOUT = Neighbourhood.from_lattice(
    BoxLattice(np.diag((3, 4, 5)), np.eye(3), 2.0), np.arange(0, 122, 2)
)


RANK_FILLED = {*p.INPUTS, "box_ranks", "pattern", "pattern_start", "partner", "rooms", "largest"}
RANK_FILLED |= {"local_spectrum", "received", "received_number", "returned", "trace"}


GROUPS_FILLED = {*p.INPUTS, "group", "limit"}


WITH_VIRIAL = {*p.INPUTS, "operator_derivatives"}


OTHERS = {
    "virial": (lambda: program(smoothing=0.0, virial=True), WITH_VIRIAL),
    "virial, cuboid": (lambda: program(grid=(6, 5, 4), virial=True), WITH_VIRIAL),
    "virial, open": (lambda: program(span=(7, 6, 9), dtype=np.float64, virial=True), WITH_VIRIAL),
    "virial, sums": (lambda: program(grid=(36, 19, 17), virial=True), WITH_VIRIAL),
    "operators": (
        lambda: operator_program(BoxLattice.from_cell(CELL, COUNTS, 2.0), 4, p.Device(132, WHOLE)),
        {"parameters"},
    ),
    "azimuths": (lambda: azimuth_program(4, (6, 5, 3), np.float64), {"derivative"}),
    "rank": (lambda: of_rank(0), RANK_FILLED),
    "rank, open": (lambda: of_rank(1, (7, 6, 9)), RANK_FILLED | {"grids"}),
    "last rank": (lambda: of_rank(2), RANK_FILLED | {"trace"}),
    "rank, virial": (lambda: of_rank(1, virial=True), RANK_FILLED | {"operator_derivatives"}),
    "groups": (of_groups, GROUPS_FILLED),
    "groups, open": (lambda: of_groups((7, 6, 17), 9, np.float64), GROUPS_FILLED),
    "sites": (of_sites, SITES_FILLED),
    "sites, double": (lambda: of_sites("double", switching=0.8), SITES_FILLED),
    "many sites": (lambda: of_sites(number=110_000, box_vectors=15 * np.eye(3)), SITES_FILLED),
    "sites, half": (lambda: of_sites("single", number=30000, radius=2.0), SITES_FILLED),
    "sites in free space": (
        lambda: of_sites(cutoff=None, box_vectors=None, partners=0),
        SITES_FILLED | UNLISTED,
    ),
    **{
        f"level, {name}": (
            lambda name=name: level.program(name, level.Level(5, 4), p.Device(132, WHOLE)),
            {"moments"},
        )
        for name in level.OPERATORS
    },
    **{
        f"layout, {name}": (lambda name=name: layouts.program(name, LAYOUT, np.float32), {"xq"})
        for name in layouts.LAYOUTS
    },
}
"""Programs that are not of the FMM alone, and the buffers that are filled for them."""


@pytest.fixture(scope="module", params=[*CASES, *OTHERS])
def any_program(request):
    """A program, of the FMM or another, and the buffers that are filled for it."""
    if request.param in OTHERS:
        make, filled = OTHERS[request.param]
        return make(), filled
    built = program(*CASES[request.param])
    if "posq" in built.buffers:
        filled = {"parameters", "charges", "placement", "cell_offsets"}
        return built, filled & {*built.buffers}
    return built, {*p.INPUTS}


TRANSFORMS = {
    "float": ["forward", "inverse"],
    "planes": ["forward_planes", "forward0", "inverse0", "inverse_planes"],
    "axes apart": [
        "forward_planes",
        "forward1",
        "forward0",
        "inverse0",
        "inverse1",
        "inverse_planes",
    ],
    "sums along one axis": ["forward_planes", "sums", "sums", "inverse_planes"],
    "sums along two": ["forward_planes", "sums", "sums", "sums", "sums", "inverse_planes"],
    "sums along all": ["sums_forward", "sums", "sums", "sums", "sums", "sums_inverse"],
    "lines too long": ["sums_forward", "sums", "sums", "sums_inverse"],
}


@pytest.mark.parametrize("case", TRANSFORMS)
def test_grids_are_transformed_as_they_fit(case):
    steps = program(*CASES[case]).steps_of("lattice")
    kernels = [step.kernel for step in steps if isinstance(step, p.Launch)]
    assert [
        kernel for kernel in kernels if kernel not in ("convolve", "convolve_mirrored", "trace")
    ] == TRANSFORMS[case]


@pytest.mark.parametrize("levels", [0, 1])
def test_orders_beyond_the_range_of_floats_are_refused(levels):
    """Irregular harmonics of degree 36 are 1.7e40 at distance 2, those of degree 34 are 1.4e37."""
    grid = (4, 4, 4)
    program(17, grid=grid, levels=levels)
    program(20, dtype=np.float64, grid=grid, levels=levels)
    with pytest.raises(
        UnsupportedError, match=r"^`order` 18 is too high for single precision: ask for"
    ):
        program(18, grid=grid, levels=levels)


def test_translation_matrices_are_divided_as_they_fit():
    """Blocks of far_groups, by rows of a matrix."""
    for order, dtype, shared, shape in (
        (5, np.float32, WHOLE, (512, 1)),
        (11, np.float32, WHOLE, (512, 1)),
        (11, np.float32, 64 * 1024, (128, 3)),
        (15, np.float64, WHOLE, (256, 4)),
    ):
        built = of_groups(None, order, dtype, shared)
        (launch,) = (step for step in built.steps_of("l2p") if isinstance(step, p.Launch))
        assert (launch.block, launch.grid[1]) == shape
        rows = built.macros["FAR_ROWS"]
        assert rows % 32 == 0 and rows * launch.grid[1] >= (order + 1) ** 2
        assert built.kernels["far_groups"].shared <= shared - 8 * 1024
    assert far_shape(15, np.dtype(np.float64), 64 * 1024) == (4, 0)


def test_stages_are_in_order(built):
    stages = [step.stage for step in built.steps]
    below = [name for level in (1, 2) for name in (f"l2l{level}", f"m2l{level}")]
    expected = ["sort", "p2m", "m2m", "lattice", *below, *STAGES[STAGES.index("lattice") + 1 :]]
    expected.insert(expected.index("gather"), "term")
    assert stages == [
        stage for stage in (p.SETUP, *expected, "export") for _ in built.steps_of(stage)
    ]
    assert {*STAGES} <= {*stages}


def test_sort_goes_ahead_where_a_particle_may_be_outside():
    """Steps before the graph cost time, so that sort precedes it in no other case."""
    for case, ahead in (("open in OpenMM", {"sort"}), ("open", set()), ("mixed in OpenMM", set())):
        made = program(*CASES[case])
        assert {step.stage for step in made.steps if made.phase_of(step) == p.Phase.AHEAD} == ahead
        assert all(step.stream == 0 for step in made.steps_of("sort"))


def test_arguments_fit_the_kernels(any_program):
    built, _ = any_program
    for step in built.steps:
        if not isinstance(step, p.Launch):
            continue
        parameters, threads = signature(built, step)
        assert 0 < step.block <= threads, step.kernel
        if threads < MAX_THREADS and built.kernels[step.kernel].file not in ANY_BLOCK:
            assert step.block == threads, step.kernel
        assert len(parameters) == len(step.arguments), step.kernel
        for argument, parameter in zip(step.arguments, parameters, strict=True):
            assert ("*" in parameter) == isinstance(argument, p.At), (step.kernel, parameter)
            if isinstance(argument, p.At):
                assert argument.element < np.prod(built.buffers[argument.buffer].shape)
            else:
                assert parameter.split()[0] == {"i": "int", "f": "double"}[argument.dtype.kind]
                assert argument.dtype in (np.int32, np.float64)


def test_everything_is_written_before_it_is_read(any_program):
    built, filled = any_program
    written = {
        name for name, buffer in built.buffers.items() if buffer.data is not None or buffer.external
    }
    assert {name for name in written if built.buffers[name].external} <= {*EXTERNAL, *FLAGS}
    written |= filled
    ever = set(written)
    for step in built.steps:
        reads, writes = accesses(built, step)
        assert reads <= written, step
        for name in writes:
            written -= overwritten(built, name)
        written |= writes
        ever |= writes
    assert ever == set(built.buffers)


def overwritten(built, name):
    """Buffers in the memory of another one, and that one."""
    first, last, host = extent(built, name)
    others = {other: extent(built, other) for other in built.buffers if other != name}
    return {
        other
        for other, (begin, end, memory) in others.items()
        if memory == host and begin < last and first < end
    }


def extent(built, name):
    """First and last byte of a buffer, and the buffer in which it lies."""
    buffer = built.buffers[name]
    host, first = buffer.within or (name, 0)
    assert first + buffer.nbytes <= built.buffers[host].nbytes
    return first, first + buffer.nbytes, host


def test_results_are_written(built):
    written = set().union(*(accesses(built, step)[1] for step in built.steps))
    inside = "posq" in built.buffers
    assert {*(("sums", "potentials", "force_buffer") if inside else p.OUTPUTS)} <= written


def test_what_depends_on_the_shape_is_marked(built):
    """All that the setup writes and a stage reads: who keeps it can leave the setup out."""
    setup = [step for step in built.steps_of(p.SETUP) if isinstance(step, p.Launch)]
    written = set().union(*(accesses(built, step)[1] for step in setup))
    later = [accesses(built, step) for step in built.steps if step.stage != p.SETUP]
    assert set(built.shaped) == written & set().union(*(reads for reads, _ in later))
    assert not set(built.shaped) & set().union(*(writes for _, writes in later))


def test_streams_do_not_race(any_program):
    """Two steps that touch a buffer, one of them writing, are ordered by their
    stream or by events."""
    built, _ = any_program
    last, recorded, before, touched = {}, {}, [], []
    for number, step in enumerate(built.steps):
        sources = [last.get(step.stream)] + (
            [recorded[step.event]] if isinstance(step, p.Wait) else []
        )
        before.append(set().union(*({s} | before[s] for s in sources if s is not None)))
        last[step.stream] = number
        if isinstance(step, p.Record):
            recorded[step.event] = number
        reads, writes = (
            {extent(built, name)[2] for name in names} for names in accesses(built, step)
        )
        for other, (other_reads, other_writes) in enumerate(touched):
            if writes & (other_reads | other_writes) or reads & other_writes:
                assert other in before[number], (built.steps[other], step)
        touched.append((reads, writes))
    assert len(before[-1]) == len(built.steps) - 1, "a stream is not joined"


def test_the_parameter_block_has_the_order_of_the_struct():
    text = (kernel_folder() / "common" / "parameters.cuh").read_text()
    members = re.findall(r"double (\w+)(?:\[(\d+)\])?;", text)
    lattice, width = BoxLattice.from_cell(CELL, COUNTS, 2.0), box_width(CELL, COUNTS)
    block = parameter_block(lattice, width, (1.0, 2.0, 3.0))
    parts = dict(
        zip(
            [name for name, _ in members],
            np.split(block, np.cumsum([int(n or 1) for _, n in members])[:-1]),
            strict=True,
        )
    )
    np.testing.assert_allclose(
        parts["boxes"].reshape(3, 3) * width @ parts["inverse"].reshape(3, 3), np.eye(3), atol=1e-14
    )
    np.testing.assert_allclose(parts["slope"] / width, parts["inverse"])
    np.testing.assert_allclose(parts["cell"].reshape(3, 3) * width, CELL, atol=1e-14)
    np.testing.assert_allclose(parts["potential"], parts["field"] * width)
    np.testing.assert_array_equal(parts["origin"], [1.0, 2.0, 3.0])


def test_a_source_is_complete():
    text = source_of("p2m", {"ORDER": 5, "UNKNOWN": 1})
    assert "#include" not in text
    assert text.startswith("#define ORDER 5\n")
    assert text.count("struct Parameters {") == 1
    lines, file = text.splitlines(), (kernel_folder() / "p2m.cu").read_text().splitlines()
    includes = [i for i, line in enumerate(file, 1) if line.startswith("#include")]
    assert len(includes) == 4
    last = lines.index(f'#line {includes[-1] + 1} "p2m.cu"')
    assert lines[last + 1 :] == file[includes[-1] :]


@pytest.mark.parametrize("file", sorted(kernel_files()))
def test_a_source_has_every_macro_that_it_uses(file):
    """The preprocessor reads the same with all macros of a program."""
    macros = program(*CASES["levels"]).macros
    assert source_of(file, macros).startswith("#define ")
    everything = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    text = everything + source_of(file, {})
    assert preprocessed(source_of(file, macros)) == preprocessed(text)


def test_macros_that_a_stage_does_not_use_are_left_out():
    """Programs of different orders and smoothing share the kernels without expansions."""
    macros = program(*CASES["levels"]).macros
    for file in ("gather", "dft"):
        assert source_of(file, macros | {"ORDER": 9}) == source_of(file, macros)
    assert source_of("p2m", macros | {"ORDER": 9}) != source_of("p2m", macros)


def test_serialises(any_program):
    built, _ = any_program
    data = serialise(built)
    assert data.startswith(MAGIC)
    reader = Reader(data)
    assert reader.integer() == VERSION
    sources = [(reader.name(), reader.name()) for _ in range(reader.integer())]
    assert all(text == source_of(stage, built.macros) for stage, text in sources)
    kernels = [(reader.name(), *reader.integers(3)) for _ in range(reader.integer())]
    assert {
        name: p.Kernel(sources[file][0], shared) for name, file, shared, _ in kernels
    } == built.kernels
    assert {name for name, _, _, waits in kernels if waits} == p.WAITING & built.kernels.keys()
    buffers = [
        (reader.name(), *reader.integers(3), reader.block()) for _ in range(reader.integer())
    ]
    for (name, kind, size, shaped, block), (expected, buffer) in zip(
        buffers, built.buffers.items(), strict=True
    ):
        assert (name, size) == (expected, buffer.nbytes)
        assert kind == ("own", "external", "flag").index(buffer.kind)
        assert shaped == (name in built.shaped)
        assert block == (b"" if buffer.data is None else buffer.data.tobytes())
    phases = [reader.name() for _ in range(reader.integer())]
    streams, events, steps = reader.integers(3)
    assert streams == built.streams
    assert steps == len(built.steps)
    for step in built.steps:
        kind, phase, stream = reader.integers(3)
        assert kind == (p.Launch, p.Memset, p.Record, p.Wait).index(type(step))
        assert (phases[phase], stream) == (built.phase_of(step), step.stream)
        if kind == 0:
            kernel, *launch, count = reader.integers(7)
            assert (kernels[kernel][0], *launch) == (
                step.kernel,
                *step.grid,
                step.block,
                step.cooperative,
            )
            for argument in step.arguments:
                buffer = reader.integer()
                if buffer < 0:
                    assert reader.block() == argument.tobytes()
                else:
                    itemsize = built.buffers[argument.buffer].dtype.itemsize
                    assert (buffers[buffer][0], reader.integer()) == (
                        argument.buffer,
                        argument.element * itemsize,
                    )
            assert count == len(step.arguments)
        elif kind == 1:
            assert buffers[reader.integer()][0] == step.buffer
        else:
            assert 0 <= reader.integer() < events
    assert reader.at == len(data)


def test_what_a_gpu_cannot_do_is_refused_by_name():
    """More particles than numbers of 32 bits count the parts of;
    expansions that no block can hold."""
    lattice, pairs = BoxLattice.from_cell(CELL, COUNTS, 2.0), np.zeros((0, 2), np.int64)
    many = np.broadcast_to(1.0, (2**28,))
    with pytest.raises(
        UnsupportedError, match=r"^a GPU takes at most 268,435,455 particles, got 268,435,456$"
    ):
        build(Specification(lattice, 4, 0.0, many, pairs, False), p.Device(132, WHOLE))
    for grid in (None, (8, 6, 7)):  # both kernels of the convolution
        with pytest.raises(
            UnsupportedError, match=r"^`order=14` needs [\d,]+ bytes of shared memory .* has 20,000"
        ):
            program(order=14, dtype=np.float64, grid=grid, shared=20000)
