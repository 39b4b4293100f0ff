"""Time of an evaluation that the ranks of MPI share, beside that of one rank."""

import itertools

from fmm_openmm.cli.bench.common import add_cases, lines

EXAMPLE = "fmm-openmm bench distributed --sizes 6:2x2x3 --tolerance 5e-4"

COLUMNS = (
    "atoms",
    "ranks",
    "tolerance",
    "evaluation, ms",
    "one rank, ms",
    "efficiency",
    "computing, ms",
    "sent, MB",
    "force error",
    "memory, MB",
    "one rank, MB",
)


def add_arguments(parser) -> None:
    """Add the arguments: sizes and tolerances, numbers of ranks, the backend, and the places of
    the particles."""
    add_cases(parser)
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of ranks, one or several (default: all)",
    )
    parser.add_argument(
        "--backend", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU per rank"
    )
    parser.add_argument(
        "--scattered",
        action="store_true",
        help="the ranks hold particles of each other's boxes (default: mostly of their own)",
    )


def communicator():
    """MPI's communicator of all ranks."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ImportError("bench distributed needs MPI: pip install 'fmm_openmm[mpi]'") from error
    return MPI.COMM_WORLD


def prepare(args, terminal) -> None:
    """Refuse numbers of ranks that there are not; leave output to rank 0."""
    comm = communicator()
    for count in args.ranks or ():
        if not 1 <= count <= comm.size:
            raise ValueError(f"--ranks must lie between 1 and {comm.size}, got {count}")
    if comm.rank:
        terminal.silence()
        args.plot = None


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    from fmm_openmm.bench.distributed import THREADS, measure_among
    from fmm_openmm.bench.systems import Size

    comm, rows = communicator(), []
    sizes = args.sizes or [Size(6.0), Size(6.0, (2, 2, 3))]
    each = "a GPU for each rank" if args.backend == "cuda" else f"threads of each rank: {THREADS}"
    terminal.say(f"Cubes of water; {each}; start with mpirun -n RANKS\n")
    terminal.heading(COLUMNS)
    cases = itertools.product(sizes, args.tolerance or (5e-4,), args.ranks or [comm.size])
    for size, tolerance, ranks in cases:
        row = measure_among(comm, ranks, size, tolerance, args.backend, args.scattered)
        if row is None:
            continue
        rows.append(row)
        terminal.row(
            [
                str(row["atoms"]),
                str(row["ranks"]),
                f"{tolerance:g}",
                milliseconds(row["seconds"]),
                milliseconds(row["one_rank_seconds"]),
                f"{row['efficiency']:.2f}",
                "" if args.backend == "cuda" else f"{1e3 * row['compute_seconds']:.0f}",
                "" if args.backend == "cuda" else f"{1e-6 * row['sent']:.1f}",
                f"{row['force_error']:.1e}",
                f"{1e-6 * row['memory']:.0f}",
                f"{1e-6 * row['one_rank_memory']:.0f}",
            ]
        )
    if drawing:
        lines(drawing, rows, ("tolerance",), lambda row: 1e3 * row["seconds"], "evaluation, ms")
    return {"rows": rows}


def milliseconds(seconds: float) -> str:
    """A time with three digits or, if it is long, in whole milliseconds."""
    return f"{1e3 * seconds:.0f}" if seconds > 0.1 else f"{1e3 * seconds:.3g}"
