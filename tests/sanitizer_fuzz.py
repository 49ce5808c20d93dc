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

import torch

import contdrop as cd
from contdrop.kernels import native, reference
from contdrop.kernels.native import loader
from contdrop.laws import KernelLaw, training_factor

NATIVE = pathlib.Path(__file__).parents[1] / "src" / "contdrop" / "kernels" / "native"
FLAGS = ["-std=c++17", "-O0", "-g1", "-fPIC", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
CALLS = pathlib.Path(__file__).with_name("sanitized_calls.py")
POISON = 0xA5


def missing() -> str | None:
    """Why the sanitizers cannot run here, if so."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        return "needs g++ on Linux"
    return None if os.path.isabs(_libasan()) else "g++ comes without libasan"


def _libasan() -> str:
    # g++ prints the bare name if it does not find the file.
    return subprocess.check_output(["g++", "-print-file-name=libasan.so"], text=True).strip()


def build(directory: pathlib.Path, *, portable: bool) -> pathlib.Path:
    """Compiles the library with the sanitizers: all instruction sets, or the portable one, which takes seconds."""
    sources = {"contdrop": [], "kernels_portable": []}
    if not portable:
        sources |= {"kernels_avx2": AVX2, "kernels_avx512": AVX512}
    x86 = [] if portable else ["-DCONTDROP_X86"]

    def compile_one(name: str) -> str:
        result = str(directory / f"{name}.o")
        command = ["g++", *FLAGS, *x86, *sources[name], "-c", str(NATIVE / f"{name}.cpp"), "-o", result]
        subprocess.run(command, check=True)
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


def make_cases(count: int, seed: int) -> list[Case]:
    rng = random.Random(seed)
    makers = [_dropout_case] * 3 + [_relu_case, _keep_where_case] + [_dropconnect_case] * 2 + [_gradients_case]
    return [makers[i % len(makers)](rng) for i in range(count)]


KEEPS = [0.0, 1.0, 0.5, 0.25, 0.75, 0.0625, 3 / 256, 1 / 65536, 0.3, 0.99, 1 - 1e-12]
LAWS = [
    *(cd.Bernoulli(keep=keep) for keep in KEEPS),
    *(cd.Uniform(), cd.Uniform(-1, 0.5)),
    *(cd.Gaussian(sigma=sigma) for sigma in (0.0, 0.1, 0.2, 0.3, 0.5, 1e6)),
    cd.Gaussian(sigma=0.3, low=-float("inf"), high=float("inf")),
]
ONES = KernelLaw("bernoulli", (1.0,), 1.0)


def _size(rng: random.Random) -> int:
    edge = rng.choice([16, 32, 64, 96, 512, 1024, 2048, 6144]) * rng.choice([1, 1, 2, 5]) + rng.choice([-1, 0, 1])
    return rng.choice([rng.randint(1, 40), rng.randint(1, 600), edge])


def _seed(rng: random.Random) -> int:
    return rng.randint(-(2**63), 2**63 - 1)


def _bytes(tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _random(rng: random.Random, dtype, *shape: int):
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _array(pointer_at: int, tensor, rng: random.Random, *, result: bool = False) -> tuple[int, int, bytes]:
    """Exactly the elements between the first and the last of a tensor, after a few bytes that shift its alignment."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    extent = 1 + last if tensor.numel() else 0
    lead = tensor.element_size() * rng.choice([0, 0, 1, 3])
    content = bytes([POISON]) * (extent * tensor.element_size())
    if not result:
        content = _bytes(tensor.as_strided((extent,), (1,)))
    return pointer_at, lead, bytes([POISON]) * lead + content


def _right(raw: bytes, lead: int, like, expected, bound) -> bool:
    """Whether the bytes of a result, laid out like a tensor, are what they should be."""
    body = torch.frombuffer(bytearray(raw[lead:]), dtype=like.dtype) if len(raw) > lead else like.new_empty(0)
    got = body.as_strided(like.shape, like.stride())
    outside = torch.ones(body.numel(), dtype=torch.bool)
    outside.as_strided(like.shape, like.stride()).fill_(False)
    gaps = set(_bytes(body[outside])) | set(raw[:lead])
    limit = torch.finfo(like.dtype).max
    error = (got.double().clamp(-limit, limit) - expected.double().clamp(-limit, limit)).abs()
    rounding = 2 * torch.finfo(like.dtype).eps * expected.double().abs() + 2.0**-23 * limit**-0.9
    return gaps <= {POISON} and not got.isnan().any() and bool((error <= bound + rounding).all())


def _case(function: str, call, rng: random.Random, inputs: dict, results: dict, text: str) -> Case:
    """A case of a structure, the tensors of its inputs, and what its results are like, should be and may be off."""
    kind = type(call)
    arrays = [_array(getattr(kind, name).offset, tensor, rng) for name, tensor in inputs.items()]
    arrays += [_array(getattr(kind, name).offset, like, rng, result=True) for name, (like, *_) in results.items()]
    leads = [lead for _, lead, _ in arrays[len(inputs) :]]

    def check(*raws: bytes) -> bool:
        return all(_right(*each, *result) for *each, result in zip(raws, leads, results.values(), strict=True))

    text = f"{function} {text} seed {call.seed}"
    return Case(function, bytes(call), kind.threads.offset, arrays, text, check, len(results))


def _rounding(law, factor: float, x):
    """How much the product of a mask value and x may be off."""
    return 0 if law.kind == "bernoulli" else 1e-6 * abs(factor) * x.double().abs()


def _dropout_case(rng: random.Random) -> Case:
    law = rng.choice(LAWS)
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
    inverse = sorted(range(axes), key=order.__getitem__)
    x = _random(rng, dtype, *full).permute(inverse)[tuple(slice(None, None, step) for step in steps)]
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
    text = f"{law} {dtype} {tuple(x.shape)} strides {x.stride()} shared {shared} window {window}"
    return _case("dropout", call, rng, {"x": x}, {"out": (out, expected, _rounding(law, factor, x))}, text)


def _relu_case(rng: random.Random) -> Case:
    law = rng.choice(LAWS)
    factor = training_factor("fuzz", law, "inverted")
    x = _random(rng, torch.float32, _size(rng))
    backward = rng.random() < 0.5
    seed = _seed(rng)
    call = loader.Relu(law=native.prepare(law.kind, law.params, factor))
    call.count, call.seed, call.stream = len(x), seed, reference.STREAM_MASK
    mask = (torch.tensor(seed), KernelLaw(law.kind, law.params, factor), [], reference.STREAM_MASK)
    inputs = {"x": x}
    if backward:
        inputs["gate"] = _random(rng, torch.float32, len(x)).relu()
        expected = torch.where(inputs["gate"] != 0, reference.dropout(x, *mask), 0)
    else:
        expected = reference.dropout(x.relu(), *mask)
    results = {"out": (x, expected, _rounding(law, factor, x))}
    return _case("relu", call, rng, inputs, results, f"{law} {len(x)} backward {backward}")


def _keep_where_case(rng: random.Random) -> Case:
    dtype = rng.choice(list(native.TYPES))
    x = _random(rng, dtype, _size(rng))
    keep = _random(rng, torch.float64, len(x)).sigmoid().to(dtype)
    seed = _seed(rng)
    call = native.KeepWhere(type=native.TYPES[dtype], count=len(x), seed=seed, stream=reference.STREAM_MASK)
    results = {"out": (x, reference.keep_where(x, torch.tensor(seed), keep, []), 0)}
    return _case("keep_where", call, rng, {"x": x, "keep": keep}, results, f"{dtype} {len(x)}")


def _dropconnect_case(rng: random.Random) -> Case:
    wanted = rng.choice("gxw")
    widths = [rng.randint(1, 70), 127, 128, 511, 512, 513]
    return _contraction_case(rng, wanted, "gwx".replace(wanted, ""), [1, 3, 8, 9, 17], widths)


def _gradients_case(rng: random.Random) -> Case:
    first, widths = rng.choice([0, 3]), [rng.randint(1, 70), 95, 96, 97, 512]
    return _contraction_case(rng, "xw", "gwx", [1, 3, 8, 9, 17, 70], widths, first)


def _contraction_case(rng, wanted, taken, outputs, widths, first_example=0) -> Case:
    """One of the sums over per-example masks of the tensors g, w and x, which are named by their letters."""
    law, dtype = rng.choice(LAWS), rng.choice([torch.float32, torch.float64])
    n, outputs, width = rng.randint(1, 9), rng.choice(outputs), rng.choice(widths)
    shapes = {"g": (n, outputs), "w": (outputs, width), "x": (n, width)}
    tensors = {name: _random(rng, dtype, *shape) for name, shape in shapes.items()}
    seed = _seed(rng)
    prepared = native.prepare(law.kind, law.params, 1.0)
    call = native.DropConnect(type=native.TYPES[dtype], contraction=native.CONTRACTIONS[wanted])
    call.examples, call.outputs, call.inputs, call.first_example = n, outputs, width, first_example
    call.pitch, call.seed, call.law = reference.pitch(width, prepared.bits), seed, prepared
    exact = {name: tensors[name].double() for name in taken}
    encoded = KernelLaw(law.kind, law.params, 1.0)
    expected = reference.dropconnect(wanted, exact, torch.tensor(seed), encoded, first_example)
    # As if the masks were all one: the sum of the sizes of the terms, but for the size of the masks.
    absolute = {name: tensor.abs() for name, tensor in exact.items()}
    sizes = reference.dropconnect(wanted, absolute, torch.tensor(seed), ONES, first_example)
    largest = 2.5 if law.kind == "gaussian" else 1.0
    error = 1e-6 + (max(n, outputs, width) + 8) * torch.finfo(dtype).eps * largest
    rows = zip(("result", "second"), wanted, expected, sizes)
    return _case(
        "dropconnect",
        call,
        rng,
        {name: tensors[name] for name in taken},
        {place: (tensors[name], value, size * error) for place, name, value, size in rows},
        f"{wanted} {law} {dtype} {n} x {outputs} x {width}",
    )


def fuzz(library: pathlib.Path, cases: list[Case]) -> int:
    """Runs the cases under the sanitizers; prints what is wrong, and returns 0 if nothing is."""
    names = ("function", "structure", "threads_at", "arrays", "description", "outputs")
    plain = [{name: getattr(case, name) for name in names} for case in cases]
    with tempfile.TemporaryDirectory() as directory:
        cases_path, results_path = pathlib.Path(directory, "cases"), pathlib.Path(directory, "results")
        cases_path.write_bytes(pickle.dumps(plain))
        sanitizers = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}  # the leaks are Python's
        environment = {**os.environ, "LD_PRELOAD": _libasan(), **sanitizers}
        # -S: nothing from site-packages, so no torch.
        command = [sys.executable, "-S", CALLS, library, cases_path, results_path]
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
    options = parser.parse_args()
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
