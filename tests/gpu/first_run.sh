#!/bin/bash
# first_run.sh [FIRST [LAST]]: check the CUDA path step by step on a machine with a GPU, from the repository root.
#
# README.md beside this file lists the steps. Every step has a time limit, so that a step that hangs costs little, and
# writes a log to OUT (default out/). FIRST and LAST select steps by number. Set PYTHON to the interpreter of an
# environment with hpccoll[cuda12] or hpccoll[cuda13], hpccoll[torch], an MPI library and pytest-mpi. Set WHEELS to a
# folder of wheels to install them first, on a machine without a network.
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 2
first=${1:-0} last=${2:-99}
out=${OUT:-out}
python=${PYTHON:-$(command -v python3)}
mkdir -p "$out"
PATH=$(dirname "$python"):$PATH
export PATH PYTHONPATH=$PWD PYTHONUNBUFFERED=1 HPCCOLL_TUNING=off OMP_NUM_THREADS=2 HYDRA_LAUNCHER=fork CI=1
ulimit -c 0

hpccoll=("$python" -m hpccoll.cli.main)
two=(mpirun -n 2)
# A warning of CuPy must not fail the run: -W default.
tests=("$python" -m pytest --with-mpi -W default -p no:cacheprovider -q --maxfail=3 --timeout=120 tests/gpu)
failed=0

# step SECONDS NAME COMMAND...: run a command with a time limit, and print the end of its log.
step() {
    local limit=$1 name=$2 number=${2%%-*}
    shift 2
    if ((number < first || number > last)); then return; fi
    echo "=== $name ($(date +%T))"
    timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1
    local status=$?
    tail -n 25 "$out/$name.log"
    echo "--- $name: status $status"
    if ((status)); then failed=1; fi
}

versions='import cupy, mpi4py, numpy, torch
print(numpy.__version__, torch.__version__, torch.cuda.nccl.version(), cupy.__version__, mpi4py.__version__)'
job='from hpccoll.runtime import job; print(job.get_world().size, job.get_mpi_library())'
if [ -n "${WHEELS:-}" ]; then
    step 60 0-wheels "$python" -m pip install --quiet --no-index --no-deps --force-reinstall "$WHEELS"/*.whl
fi
step 60 0-native "$python" hpccoll/native/compiler.py
step 20 0-gpus nvidia-smi --query-gpu=name,driver_version,compute_mode,mig.mode.current --format=csv
step 60 0-versions "$python" -c "$versions"
step 30 0-mpi "${two[@]}" "$python" -c "$job"
step 70 1-ipc "$python" -m hpccoll.doctor.probe_cuda_ipc
step 120 2-kernels "$python" tests/gpu/check_kernels.py
step 60 3-fences "${two[@]}" "${tests[@]}" -k 'two_hundred or streams or torch_tensors or refused'
step 60 4-lifetime "${two[@]}" "${tests[@]}" -k 'given_back or pools'
step 240 5-bits "${two[@]}" "${tests[@]}" -k bit_equal
step 60 6-probe "$python" -c 'from hpccoll.runtime.cuda import probe; print(probe.is_mpi_cuda_aware())'
step 120 7-messages "${two[@]}" "${tests[@]}" -k 'messages or empty or device_number'
step 120 8-device "${two[@]}" "$python" bench/device.py --sizes 1M,16M,256M,1G --seconds 1 --json "$out/device.jsonl"
step 100 9-bench "${two[@]}" "${hpccoll[@]}" bench all_reduce all_gather reduce_scatter all_to_all broadcast \
    --buffer cuda -b 1K -e 16M -f 16 --engine hpccoll,mpi,gloo --json "$out/bench.jsonl"
step 60 10-nccl mpirun -n 1 "${hpccoll[@]}" bench all_reduce all_gather reduce_scatter \
    --buffer cuda -b 1K -e 16M -f 64 --engine hpccoll,nccl --budget 1
for mesh in dp=2 tp=2 pp=2; do
    step 40 "11-train-$mesh" "${two[@]}" "${hpccoll[@]}" train "$mesh" --device cuda --steps 30 --check
done
step 60 12-doctor "${two[@]}" "${hpccoll[@]}" doctor --all --require cuda,ipc,cupy,nccl
step 90 13-sanitizer "${two[@]}" compute-sanitizer --tool memcheck --error-exitcode 9 "${tests[@]}" \
    -k 'bit_equal and two_shot and float32-sum'
exit $failed
