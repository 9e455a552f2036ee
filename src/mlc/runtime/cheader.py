"""The C side of a package: the header that documents a model's calls, and small programs that run it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlc.runtime.dtypes import ELEMENTS
from mlc.runtime.manifest import SYMBOLS, Manifest
from mlc.runtime.tensor_spec import TensorSpec

_PLAIN = re.compile(r"[a-z0-9_]{1,64}")
# Names that look as if they had been altered are altered too, so that no two names can meet.
_ALTERED = re.compile(r".*_[0-9a-f]{12}")


def mangle(name: str) -> str:
    """A name that is safe in code, file names and shells: ``[a-z0-9_]{1,64}``, ending in a hash where it was altered.

    >>> mangle("data")
    'data'
    >>> mangle("Data:0")
    'data_0_4defea365aa3'
    """
    if _PLAIN.fullmatch(name) and not _ALTERED.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:48]
    return f"{words}_{digest}" if words else f"n_{digest}"


_HEADER = """\
/* {model}, compiled by mlc {version} for {target}.
 *
 * Link lib/model.o (with -lm, and -lpthread before glibc 2.34), or use lib/model.so where the package has one.
 *
 * Parameters: `params` is the address of the data section of params.safetensors, that is of byte 8 + H of the file,
 * where H is the little-endian 64-bit integer in its first 8 bytes. It must be a multiple of MLC_ALIGNMENT.
 *
 * Inputs and outputs: arrays of pointers in the order of `enum mlc_input` and `enum mlc_output`. Each points to a
 * row-major tensor aligned to its element; MLC_ALIGNMENT is faster. Inputs are not written to, and outputs overlap
 * nothing. f16 and bf16 elements are given by their bits, bool as one byte, 0 or 1; i4, i2, u4 and u2 as one value a
 * byte, of which only the low bits are read.
 *{seed}{updates}{device}
 * The calls keep no state: with a workspace each, several threads may run the model at once. They may share one pool; a
 * call that finds the pool busy runs alone. Models of one version of mlc may share a pool, too, whoever created it;
 * compiled with --name, each has names of its own.
 */
#ifndef MLC_MODEL_H
#define MLC_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define MLC_ALIGNMENT {alignment}
#define MLC_WORKSPACE_BYTES {workspace}u
#define MLC_PARAMS_BYTES {params}u
#define MLC_STEP_COUNT {steps}

{ports}
#ifndef MLC_POOL /* one type for all models */
#define MLC_POOL
typedef struct mlc_pool mlc_pool;
#endif

/* A pool of `threads` threads, 1 to 1024, the calling one included; NULL if they cannot be started. */
mlc_pool *mlc_pool_create(int32_t threads);
/* Ends the threads of a pool that nobody uses any more. NULL is fine. */
void mlc_pool_destroy(mlc_pool *pool);
/* Calls fn(ctx, begin, end) on parts of 0..n, in parallel, and returns when all are done. */
void mlc_parallel(mlc_pool *pool, void (*fn)(void *ctx, int64_t begin, int64_t end), void *ctx, int64_t n);

/* Runs the model once. `workspace` is MLC_WORKSPACE_BYTES at a multiple of MLC_ALIGNMENT; its contents do not matter.
 * `pool` may be NULL: then everything runs on the calling thread. Returns 0. */
int32_t mlc_run(const void *const *inputs, void *const *outputs, const void *params, void *workspace, mlc_pool *pool);
/* The same, and adds to ns[i] the nanoseconds of step i, for each of the MLC_STEP_COUNT steps. */
void mlc_profile(const void *const *inputs, void *const *outputs, const void *params, void *workspace, mlc_pool *pool,
                 int64_t *ns);
/* Runs step i alone, after steps 0 to i - 1. */
void mlc_step(const void *const *inputs, void *const *outputs, const void *params, void *workspace, mlc_pool *pool,
              int64_t i);
{parts}
#ifdef __cplusplus
}}
#endif

#endif
"""


_PARTS = """\
/* Runs step i, one of {which}, and adds to ns[k] the nanoseconds of its part k, of all rounds together; there are
 * {counts}. */
void mlc_parts(const void *const *inputs, void *const *outputs, const void *params, void *workspace, mlc_pool *pool,
               int64_t i, int64_t *ns);
"""

_SEED = """
 * The model draws random numbers. The uint64_t of input MLC_INPUT_{name} decides all of them: the same seed gives the
 * same numbers, on any number of threads. Give each run another.
 *"""

_UPDATES = """
 * {count} of the outputs are next values of inputs, and may be given those inputs' memory, which is then written to:
 * {pairs}
 *"""

_DEVICE = """
 * THIS PACKAGE NEEDS THE RUNTIME OF mlc: parts of the model run on the device {device}, whose driver the runtime calls
 * between steps. Here mlc_run does nothing and returns 1, mlc_profile does nothing, and mlc_step runs the host's steps.
 *"""


# Everything but the type of the pool, which several models may share.
_NAMES = re.compile(r"\b(mlc|MLC)_(?!(?:pool|POOL)\b)")


def _named(text: str, symbols: str) -> str:
    """A text of ours, before anything from outside is put into it, with the names that a package is to export."""
    return _NAMES.sub(lambda m: f"{symbols.upper() if m[1] == 'MLC' else symbols}_", text)


def header_name(symbols: str = SYMBOLS) -> str:
    """The member of a package that holds its C header."""
    return f"include/{symbols}_model.h"


def c_header(manifest: Manifest) -> str:
    """``include/mlc_model.h``: the model's calls, its sizes, its inputs and outputs in order. ASCII, C99 and C++."""
    symbols = manifest.symbols
    device = ""
    if manifest.device is not None:
        device = _named(_DEVICE, symbols).format(device=_comment(manifest.device.name))
    seed = "" if manifest.seed is None else _named(_SEED, symbols).format(name=mangle(manifest.seed))
    pairs = [
        _named("MLC_OUTPUT_{new} over MLC_INPUT_{old}", symbols).format(new=mangle(new), old=mangle(old))
        for new, old in manifest.updates.items()
    ]
    updates = _UPDATES.format(count=len(pairs), pairs="\n * ".join(pairs)) if pairs else ""
    loops = {i: len(step.parts) for i, step in enumerate(manifest.steps) if step.parts}
    parts = ""
    if loops:
        which, counts = (", ".join(map(str, numbers)) for numbers in (loops, loops.values()))
        parts = _named(_PARTS, symbols).format(which=which, counts=counts)
    return _named(_HEADER, symbols).format(
        parts=parts,
        seed=seed,
        updates=updates,
        device=device,
        model=_comment(manifest.model.name),
        version=_comment(manifest.mlc_version, quoted=False),
        target=_comment(manifest.target.string),
        alignment=manifest.memory.alignment,
        workspace=manifest.memory.workspace_bytes,
        params=manifest.memory.params_bytes,
        steps=len(manifest.steps),
        ports=_ports("input", manifest.inputs, symbols) + "\n" + _ports("output", manifest.outputs, symbols),
    )


def _ports(kind: str, specs: Sequence[TensorSpec], symbols: str) -> str:
    """The enum of the inputs or outputs, and their sizes in bytes as an initialiser."""
    upper = f"{symbols}_{kind}".upper()
    lines = [f"enum {symbols}_{kind} {{"]
    for i, spec in enumerate(specs):
        element = f"{ELEMENTS[spec.dtype].c}, {spec.nbytes} bytes"
        lines.append(f"    {upper}_{mangle(spec.name)} = {i}, /* {_comment(spec.name)} {spec}: {element} */")
    # C has no empty initialiser: a zero stands in where there are no sizes.
    sizes = ", ".join(_join(f"{spec.nbytes}u" for spec in specs))
    return "\n".join([*lines, f"    {upper}_COUNT = {len(specs)}", "};"]) + f"\n#define {upper}_BYTES {{{sizes}}}\n"


def _join(sizes: Iterable[str]) -> list[str]:
    return list(sizes) or ["0"]


def _comment(text: str, quoted: bool = True) -> str:
    """Text from outside that cannot end a comment or a line: JSON's escapes, and those of `*`, `/` and `?`."""
    escaped = json.dumps(text)
    for character in "*/?":
        escaped = escaped.replace(character, f"\\u{ord(character):04x}")
    return escaped if quoted else escaped[1:-1]


_EXAMPLE = """\
/* Runs the model of this package once.
 *
 *   cc -O2 -I../include main.c ../lib/model.o -o main -lm -lpthread
 *   ./main ../params.safetensors [-t THREADS] [INPUT.bin ...]
 *
 * Each INPUT.bin holds the raw elements of one input, in the order of `enum mlc_input`; inputs without one are zeros.
 * The outputs are written, raw, to output0.bin, output1.bin, ... in the current folder.
 */
#define _POSIX_C_SOURCE 200112L /* posix_memalign */

#include "mlc_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, const char *which) {
    fprintf(stderr, "error: %s: %s\\n", which, what);
    exit(1);
}

/* Aligned, zeroed memory; at least one byte, so that an empty tensor has an address. */
static void *allocate(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, MLC_ALIGNMENT, bytes ? bytes : 1) != 0) {
        fail("out of memory", "main");
    }
    return memset(memory, 0, bytes ? bytes : 1);
}

/* Reads exactly `bytes` bytes up to the end of an open file, and closes it. */
static void read_rest(FILE *file, void *memory, size_t bytes, const char *path) {
    if (fread(memory, 1, bytes, file) != bytes || fgetc(file) != EOF) {
        fail("is not of the expected size", path);
    }
    fclose(file);
}

static FILE *open_file(const char *path, const char *mode) {
    FILE *file = fopen(path, mode);
    if (!file) {
        fail("cannot be opened", path);
    }
    return file;
}

static void *load_params(const char *path) {
    unsigned char head[8];
    uint64_t skip = 0;
    FILE *file = open_file(path, "rb");
    void *params = allocate(MLC_PARAMS_BYTES);
    if (fread(head, 1, 8, file) != 8) {
        fail("is not a safetensors file", path);
    }
    for (int i = 7; i >= 0; i--) {
        skip = skip << 8 | head[i];
    }
    if (skip > 100000000 || fseek(file, (long)(8 + skip), SEEK_SET) != 0) {
        fail("is not a safetensors file", path);
    }
    read_rest(file, params, MLC_PARAMS_BYTES, path);
    return params;
}

int main(int argc, char **argv) {
    /* One more than there are, because C allows no empty array. */
    const size_t input_bytes[MLC_INPUT_COUNT + 1] = MLC_INPUT_BYTES;
    const size_t output_bytes[MLC_OUTPUT_COUNT + 1] = MLC_OUTPUT_BYTES;
    void *inputs[MLC_INPUT_COUNT + 1] = {NULL};
    void *outputs[MLC_OUTPUT_COUNT + 1] = {NULL};
    int threads = 1;
    int next = 2;

    if (argc < 2) {
        fprintf(stderr, "usage: %s params.safetensors [-t THREADS] [INPUT.bin ...]\\n", argv[0]);
        return 2;
    }
    if (argc > 3 && strcmp(argv[2], "-t") == 0) {
        threads = atoi(argv[3]);
        next = 4;
    }
    if (argc - next > MLC_INPUT_COUNT) {
        fail("is one input too many", argv[next + MLC_INPUT_COUNT]);
    }

    void *params = load_params(argv[1]);
    void *workspace = allocate(MLC_WORKSPACE_BYTES);
    for (int i = 0; i < MLC_INPUT_COUNT; i++) {
        inputs[i] = allocate(input_bytes[i]);
        if (next + i < argc) {
            read_rest(open_file(argv[next + i], "rb"), inputs[i], input_bytes[i], argv[next + i]);
        }
    }
    for (int i = 0; i < MLC_OUTPUT_COUNT; i++) {
        outputs[i] = allocate(output_bytes[i]);
    }

    mlc_pool *pool = mlc_pool_create(threads);
    if (!pool) {
        fail("cannot start the threads", "mlc_pool_create");
    }
    if (mlc_run((const void *const *)inputs, outputs, params, workspace, pool) != 0) {
        fail("failed", "mlc_run");
    }
    mlc_pool_destroy(pool);

    for (int i = 0; i < MLC_OUTPUT_COUNT; i++) {
        char path[32];
        snprintf(path, sizeof path, "output%d.bin", i);
        FILE *file = open_file(path, "wb");
        if (fwrite(outputs[i], 1, output_bytes[i], file) != output_bytes[i] || fclose(file) != 0) {
            fail("cannot be written", path);
        }
        printf("%s: %zu bytes\\n", path, output_bytes[i]);
        free(outputs[i]);
    }
    for (int i = 0; i < MLC_INPUT_COUNT; i++) {
        free(inputs[i]);
    }
    free(workspace);
    free(params);
    return 0;
}
"""


def c_example(manifest: Manifest) -> str:
    """``examples/main.c``: loads the parameters, reads inputs from raw files, runs the model, and writes the outputs.

    The program takes all that is particular to the model from its header; so it is the same for every model but for its
    first line, and the names that it calls.
    """
    return f"/* An example for {_comment(manifest.model.name)}. */\n{_named(_EXAMPLE, manifest.symbols)}"


def python_example() -> str:
    """``examples/main.py``: runs the model of the package that it lies in, with Python and numpy alone."""
    return Path(__file__).with_name("standalone.py").read_text()
