"""The calls of sanitizer_fuzz.py, in a process with the sanitizers and without torch: nothing but ctypes."""

import ctypes
import pathlib
import pickle
import sys


def run_cases(library_path: str, cases_path: str, results_path: str) -> None:
    """Makes every call with every instruction set and 1 to 3 threads, and keeps what it writes."""
    library, libc, openmp = ctypes.CDLL(library_path), ctypes.CDLL(None), ctypes.CDLL("libgomp.so.1")
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
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


if __name__ == "__main__":
    run_cases(*sys.argv[1:])
