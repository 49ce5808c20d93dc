"""Fuzzes the native kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

    python tests/sanitizer_fuzz.py --cases 1000 --seed 1

Builds the kernels with the sanitizers into a temporary directory and makes random calls. The calls run in a second
process that preloads libasan and has no torch in it: every array there is a ``malloc`` of exactly the bytes that the
call may touch, so reading or writing one byte too many is an error. This process makes the calls and compares their
results with the reference back end. The exit code is 0 only if no sanitizer said anything and all results agree.

The build is unoptimised: with -O3 the sanitizers make GCC take tens of minutes over these sources.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import os
import pathlib
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

NATIVE = pathlib.Path(__file__).parents[1] / "src" / "contdrop" / "kernels" / "native"
FLAGS = ["-std=c++17", "-O0", "-g1", "-fPIC", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
POISON = 0xA5


def missing() -> str | None:
    """Why the sanitizers cannot run here, if so."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        return "needs g++ on Linux"
    return None if os.path.isabs(_libasan()) else "g++ comes without libasan"


def _libasan() -> str:
    # g++ prints the bare name if it does not find the file.
    return subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()


def build(directory: pathlib.Path, *, portable: bool) -> pathlib.Path:
    """Compiles the library with the sanitizers: all instruction sets, or the portable one, which takes seconds."""
    sources = {"contdrop": [], "kernels_portable": []}
    if not portable:
        sources |= {"kernels_avx2": AVX2, "kernels_avx512": AVX512}
    x86 = [] if portable else ["-DCONTDROP_X86"]

    def compile_one(name: str) -> str:
        result = str(directory / f"{name}.o")
        subprocess.run(
            ["g++", *FLAGS, *x86, *sources[name], "-c", str(NATIVE / f"{name}.cpp"), "-o", result], check=True
        )
        return result

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sources))
    library = directory / "sanitized.so"
    subprocess.run(["g++", *FLAGS, "-shared", *objects, "-o", str(library)], check=True)
    return library


@dataclasses.dataclass
class Case:
    """One call: the bytes of its structure without pointers and threads, and what the pointers point to.

    Every array is (place of its pointer in the structure, place of the first element in the array, bytes). The last
    ones are the results. ``check`` takes their bytes and says whether they are right; it stays in this process.
    """

    function: str
    structure: bytes
    threads_at: int
    arrays: list[tuple[int, int, bytes]]
    description: str = ""
    check: object = None
    outputs: int = 1


# In the process with the sanitizers: no torch, nothing but ctypes.


def _run_cases(library_path: str, cases_path: str, results_path: str) -> None:
    library, libc, openmp = ctypes.CDLL(library_path), ctypes.CDLL(None), ctypes.CDLL("libgomp.so.1")
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    library.contdrop_use_instructions.argtypes = [ctypes.c_char_p]
    library.contdrop_use_threads.argtypes = [ctypes.c_void_p] * 3
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    library.contdrop_use_threads(*(ctypes.cast(getattr(openmp, name), ctypes.c_void_p) for name in names))
    sets = [
        name for name in ("avx512", "avx2", "neon", "portable") if not library.contdrop_use_instructions(name.encode())
    ]
    results = []
    for case in pickle.loads(pathlib.Path(cases_path).read_bytes()):
        print(case["description"], file=sys.stderr, flush=True)  # the last one before a report is the culprit
        call = getattr(library, f"contdrop_{case['function']}")
        call.argtypes, call.restype = [ctypes.c_void_p], None
        for name in sets:
            library.contdrop_use_instructions(name.encode())
            for threads in (1, 2, 3):
                structure = ctypes.create_string_buffer(case["structure"], len(case["structure"]))
                ctypes.c_int32.from_buffer(structure, case["threads_at"]).value = threads
                blocks = []
                for pointer_at, first, content in case["arrays"]:
                    block = libc.malloc(len(content))
                    ctypes.memmove(block, content, len(content))
                    ctypes.c_uint64.from_buffer(structure, pointer_at).value = block + first
                    blocks.append(block)
                call(structure)
                after = [ctypes.string_at(block, len(c)) for block, (_, _, c) in zip(blocks, case["arrays"])]
                for block in blocks:
                    libc.free(block)
                inputs = len(after) - case["outputs"]
                untouched = after[:inputs] == [content for _, _, content in case["arrays"][:inputs]]
                results.append((name, threads, untouched, after[inputs:]))
    pathlib.Path(results_path).write_bytes(pickle.dumps(results))


# In the process with torch.


def make_cases(count: int, seed: int) -> list[Case]:
    rng = random.Random(seed)
    makers = [_dropout_case] * 3 + [_relu_case, _keep_where_case] + [_dropconnect_case] * 2 + [_gradients_case]
    return [makers[i % len(makers)](rng) for i in range(count)]


def _laws():
    import contdrop as cd

    infinity = float("inf")
    keeps = [0.0, 1.0, 0.5, 0.25, 0.75, 0.0625, 3 / 256, 1 / 65536, 0.3, 0.99, 1 - 1e-12]
    return [
        *(cd.Bernoulli(keep=keep) for keep in keeps),
        *(cd.Uniform(), cd.Uniform(-1, 0.5)),
        *(cd.Gaussian(sigma=sigma) for sigma in (0.0, 0.1, 0.2, 0.3, 0.5, 1e6)),
        cd.Gaussian(sigma=0.3, low=-infinity, high=infinity),
    ]


def _size(rng: random.Random) -> int:
    edge = rng.choice([16, 32, 64, 96, 512, 1024, 2048, 6144]) * rng.choice([1, 1, 2, 5]) + rng.choice([-1, 0, 1])
    return rng.choice([rng.randint(1, 40), rng.randint(1, 600), edge])


def _seed(rng: random.Random) -> int:
    return rng.randint(-(2**63), 2**63 - 1)


def _bytes(tensor) -> bytes:
    import torch

    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _random(rng: random.Random, count: int, dtype):
    import torch

    return torch.randn(count, generator=torch.Generator().manual_seed(rng.getrandbits(40)), dtype=torch.float64).to(
        dtype
    )


def _array(pointer_at: int, tensor, rng: random.Random, *, result: bool = False) -> tuple[int, int, bytes]:
    """Exactly the elements between the first and the last of a tensor, after a few bytes that shift its alignment."""
    extent = (
        1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    )
    lead = tensor.element_size() * rng.choice([0, 0, 1, 3])
    content = bytes([POISON]) * (extent * tensor.element_size())
    if not result:
        content = _bytes(tensor.as_strided((extent,), (1,)))
    return pointer_at, lead, bytes([POISON]) * lead + content


def _compare(like, expected, bound, lead: int):
    """A function that compares the bytes of a result, laid out like a tensor, with what they should be."""
    import torch

    def check(raw: bytes) -> bool:
        body = torch.frombuffer(bytearray(raw[lead:]), dtype=like.dtype) if len(raw) > lead else like.new_empty(0)
        got = body.as_strided(like.shape, like.stride())
        outside = torch.ones(body.numel(), dtype=torch.bool)
        outside.as_strided(like.shape, like.stride()).fill_(False)
        gaps = set(_bytes(body[outside])) | set(raw[:lead])
        limit = torch.finfo(like.dtype).max
        error = (got.double().clamp(-limit, limit) - expected.double().clamp(-limit, limit)).abs()
        rounding = 2 * torch.finfo(like.dtype).eps * expected.double().abs() + 2.0**-23 * limit**-0.9
        return gaps <= {POISON} and not got.isnan().any() and bool((error <= bound + rounding).all())

    return check


def _dropout_case(rng: random.Random) -> Case:
    import torch

    from contdrop.kernels import native, reference
    from contdrop.laws import KernelLaw, training_factor

    law = rng.choice(_laws())
    dtype = rng.choice(list(native.TYPES))
    axes = rng.randint(1, 5)
    shape = [rng.randint(1, 4) for _ in range(axes)]
    shape[rng.randrange(axes)] = _size(rng)
    if rng.random() < 0.3:  # two long axes, for tiles of all kinds
        shape = [rng.choice([1, 2]), rng.choice([3, 9, 70, 200]), rng.choice([5, 25, 130, 300])][-axes:]
        axes = len(shape)
    shared = [axis for axis in range(axes) if rng.random() < 0.2]
    # A buffer of which x takes every step-th element along one axis, in any order of the axes; or an expanded one.
    order = rng.sample(range(axes), axes) if rng.random() < 0.5 else list(range(axes))
    steps = [rng.choice([2, 3]) if rng.random() < 0.2 else 1 for _ in range(axes)]
    full = [shape[axis] * steps[axis] for axis in order]
    count = 1
    for size in full:
        count *= size
    inverse = sorted(range(axes), key=order.__getitem__)
    x = _random(rng, count, dtype).view(full).permute(inverse)[tuple(slice(None, None, step) for step in steps)]
    if rng.random() < 0.15:
        axis = rng.randrange(axes)
        x = x.narrow(axis, 0, 1).expand(shape)
    out = torch.empty_like(x)
    factor = training_factor("fuzz", law, rng.choice(["inverted", "paper"]))
    seed, stream = _seed(rng), rng.randint(0, 2)
    call = native.Dropout(type=native.TYPES[dtype], axes=axes, seed=seed, stream=stream)
    call.law = native.prepare(law.kind, law.params, factor)
    window = []
    if rng.random() < 0.3:
        window = [size + rng.choice([0, 1, 7]) for size in shape]
        window += [rng.randint(0, size - part) for size, part in zip(window, shape)]
    call.mask_first, call.mask_stride[:axes] = reference.mask_layout(shape, shared, window)
    call.size[:axes], call.x_stride[:axes], call.out_stride[:axes] = shape, x.stride(), out.stride()
    expected = reference.dropout(x, torch.tensor(seed), KernelLaw(law.kind, law.params, factor), shared, stream, window)
    arrays = [_array(0, x, rng), _array(native.Dropout.out.offset, out, rng, result=True)]
    bound = 0 if law.kind == "bernoulli" else 1e-6 * abs(factor) * x.double().abs()
    return Case(
        "dropout",
        bytes(call),
        native.Dropout.threads.offset,
        arrays,
        f"dropout {law} {dtype} {tuple(x.shape)} strides {x.stride()} shared {shared} window {window} seed {seed}",
        _compare(out, expected, bound, arrays[-1][1]),
    )


def _relu_case(rng: random.Random) -> Case:
    import torch

    from contdrop.kernels import native, reference
    from contdrop.kernels.native import loader
    from contdrop.laws import KernelLaw, training_factor

    law = rng.choice(_laws())
    factor = training_factor("fuzz", law, "inverted")
    x = _random(rng, _size(rng), torch.float32)
    backward = rng.random() < 0.5
    seed = _seed(rng)
    call = loader.Relu(law=native.prepare(law.kind, law.params, factor))
    call.count, call.seed, call.stream = len(x), seed, reference.STREAM_MASK
    arrays = [_array(0, x, rng)]
    mask = (torch.tensor(seed), KernelLaw(law.kind, law.params, factor), [], reference.STREAM_MASK)
    if backward:
        gate = _random(rng, len(x), torch.float32).relu()
        arrays.append(_array(type(call).gate.offset, gate, rng))
        expected = torch.where(gate != 0, reference.dropout(x, *mask), 0)
    else:
        expected = reference.dropout(x.relu(), *mask)
    arrays.append(_array(type(call).out.offset, x, rng, result=True))
    bound = 0 if law.kind == "bernoulli" else 1e-6 * abs(factor) * x.double().abs()
    return Case(
        "relu",
        bytes(call),
        type(call).threads.offset,
        arrays,
        f"relu {law} {len(x)} backward {backward} seed {seed}",
        _compare(x, expected, bound, arrays[-1][1]),
    )


def _keep_where_case(rng: random.Random) -> Case:
    import torch

    from contdrop.kernels import native, reference

    dtype = rng.choice(list(native.TYPES))
    x = _random(rng, _size(rng), dtype)
    keep = _random(rng, len(x), torch.float64).sigmoid().to(dtype)
    seed = _seed(rng)
    call = native.KeepWhere(type=native.TYPES[dtype], count=len(x), seed=seed, stream=reference.STREAM_MASK)
    arrays = [_array(0, x, rng), _array(native.KeepWhere.keep.offset, keep, rng)]
    arrays.append(_array(native.KeepWhere.out.offset, x, rng, result=True))
    expected = reference.keep_where(x, torch.tensor(seed), keep, [])
    return Case(
        "keep_where",
        bytes(call),
        native.KeepWhere.threads.offset,
        arrays,
        f"keep_where {dtype} {len(x)} seed {seed}",
        _compare(x, expected, 0, arrays[-1][1]),
    )


def _dropconnect_case(rng: random.Random) -> Case:
    import torch

    from contdrop.kernels import native, reference
    from contdrop.laws import KernelLaw

    law = rng.choice(_laws())
    dtype = rng.choice([torch.float32, torch.float64])
    examples, outputs = rng.randint(1, 9), rng.choice([1, 3, 8, 9, 17])
    inputs = rng.choice([rng.randint(1, 70), 127, 128, 511, 512, 513])
    g, w, x = (
        _random(rng, rows * columns, dtype).view(rows, columns)
        for rows, columns in ((examples, outputs), (outputs, inputs), (examples, inputs))
    )
    seed = _seed(rng)
    contraction, function, first, second, result = rng.choice(
        [
            ("g", reference.dropconnect, ("x", x), ("w", w), g),
            ("x", reference.dropconnect_input_gradient, ("g", g), ("w", w), x),
            ("w", reference.dropconnect_weight_gradient, ("g", g), ("x", x), w),
        ]
    )
    prepared = native.prepare(law.kind, law.params, 1.0)
    call = native.DropConnect(type=native.TYPES[dtype], contraction=native.CONTRACTIONS[contraction])
    call.examples, call.outputs, call.inputs = examples, outputs, inputs
    call.pitch, call.seed, call.law = reference.pitch(inputs, prepared.bits), seed, prepared
    arrays = [_array(getattr(native.DropConnect, name).offset, tensor, rng) for name, tensor in (first, second)]
    arrays.append(_array(native.DropConnect.result.offset, result, rng, result=True))
    exact = (first[1].double(), second[1].double(), torch.tensor(seed))
    expected = function(*exact, KernelLaw(law.kind, law.params, 1.0))
    # As if the masks were all one: the sum of the sizes of the terms, but for the size of the masks.
    sizes = function(*(tensor.abs() for tensor in exact[:2]), torch.tensor(seed), KernelLaw("bernoulli", (1.0,), 1.0))
    largest = 2.5 if law.kind == "gaussian" else 1.0
    bound = sizes * (1e-6 + (max(examples, outputs, inputs) + 8) * torch.finfo(dtype).eps * largest)
    return Case(
        "dropconnect",
        bytes(call),
        native.DropConnect.threads.offset,
        arrays,
        f"dropconnect {contraction} {law} {dtype} {examples} x {outputs} x {inputs} seed {seed}",
        _compare(result, expected, bound, arrays[-1][1]),
    )


def _gradients_case(rng: random.Random) -> Case:
    import torch

    from contdrop.kernels import native, reference
    from contdrop.laws import KernelLaw

    law = rng.choice(_laws())
    dtype = rng.choice([torch.float32, torch.float64])
    examples, outputs = rng.randint(1, 9), rng.choice([1, 3, 8, 9, 17, 70])
    inputs = rng.choice([rng.randint(1, 70), 95, 96, 97, 512])
    g, w, x = (
        _random(rng, rows * columns, dtype).view(rows, columns)
        for rows, columns in ((examples, outputs), (outputs, inputs), (examples, inputs))
    )
    seed, first_example = _seed(rng), rng.choice([0, 3])
    prepared = native.prepare(law.kind, law.params, 1.0)
    call = native.DropConnect(type=native.TYPES[dtype], contraction=native.CONTRACTIONS["xw"])
    call.examples, call.outputs, call.inputs, call.first_example = examples, outputs, inputs, first_example
    call.pitch, call.seed, call.law = reference.pitch(inputs, prepared.bits), seed, prepared
    arrays = [
        _array(getattr(native.DropConnect, name).offset, tensor, rng) for name, tensor in (("g", g), ("w", w), ("x", x))
    ]
    places = [native.DropConnect.result.offset, native.DropConnect.second.offset]
    arrays += [_array(place, tensor, rng, result=True) for place, tensor in zip(places, (x, w))]
    exact = [tensor.double() for tensor in (g, w, x)]
    expected = reference.dropconnect_gradients(
        *exact, torch.tensor(seed), KernelLaw(law.kind, law.params, 1.0), first_example
    )
    ones = (torch.tensor(seed), KernelLaw("bernoulli", (1.0,), 1.0))
    sizes = reference.dropconnect_gradients(*(tensor.abs() for tensor in exact), *ones)
    largest = 2.5 if law.kind == "gaussian" else 1.0
    error = 1e-6 + (max(examples, outputs, inputs) + 8) * torch.finfo(dtype).eps * largest
    checks = [
        _compare(like, value, size * error, array[1])
        for like, value, size, array in zip((x, w), expected, sizes, arrays[-2:])
    ]
    return Case(
        "dropconnect",
        bytes(call),
        native.DropConnect.threads.offset,
        arrays,
        f"dropconnect gradients {law} {dtype} {examples} x {outputs} x {inputs} seed {seed}",
        lambda *raws: all(check(raw) for check, raw in zip(checks, raws)),
        outputs=2,
    )


def fuzz(library: pathlib.Path, cases: list[Case]) -> int:
    """Runs the cases under the sanitizers; prints what is wrong, and returns 0 if nothing is."""
    plain = [
        {
            name: getattr(case, name)
            for name in ("function", "structure", "threads_at", "arrays", "description", "outputs")
        }
        for case in cases
    ]
    with tempfile.TemporaryDirectory() as directory:
        cases_path, results_path = pathlib.Path(directory, "cases"), pathlib.Path(directory, "results")
        cases_path.write_bytes(pickle.dumps(plain))
        environment = {
            **os.environ,
            "LD_PRELOAD": _libasan(),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        # -S: nothing from site-packages, so no torch.
        command = [sys.executable, "-S", __file__, "--run", str(library), str(cases_path), str(results_path)]
        child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if child.returncode or "ERROR: AddressSanitizer" in child.stderr or "runtime error:" in child.stderr:
            lines = child.stderr.splitlines()
            report = next((i for i, line in enumerate(lines) if "ERROR" in line or "runtime error" in line), len(lines))
            print("\n".join(lines[max(report - 3, 0) : report + 40]))
            return 1
        results = pickle.loads(results_path.read_bytes())
    wrong = []
    runs = len(results) // len(cases)
    for number, case in enumerate(cases):
        for instructions, threads, untouched, raw in results[number * runs : (number + 1) * runs]:
            if not (untouched and case.check(*raw)):
                wrong.append(f"{case.description} [{instructions}, {threads} threads]")
    sets = sorted({instructions for instructions, *_ in results})
    print("\n".join([*(f"wrong: {line}" for line in wrong[:20]), f"{len(cases)} calls with each of {', '.join(sets)}"]))
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--portable", action="store_true", help="build the portable instruction set only")
    parser.add_argument("--library", type=pathlib.Path, help="use this build")
    parser.add_argument("--overrun", action="store_true", help="make the results two bytes too short, to see it caught")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        _run_cases(*options.run)
        return 0
    if reason := missing():
        print(f"sanitizer_fuzz: {reason}")
        return 2
    cases = make_cases(options.cases, options.seed)
    if options.overrun:
        for case in cases:
            place, lead, content = case.arrays[-1]
            case.arrays[-1] = (place, lead, content[:-2])
    with tempfile.TemporaryDirectory() as directory:
        return fuzz(options.library or build(pathlib.Path(directory), portable=options.portable), cases)


if __name__ == "__main__":
    raise SystemExit(main())
