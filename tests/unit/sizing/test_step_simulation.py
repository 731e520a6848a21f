"""The simulated training step against hand-computed times of a pipeline."""

from __future__ import annotations

from dataclasses import replace

from hpccoll.parallel import Mesh
from hpccoll.plan import Machine
from hpccoll.sizing import TrainingSetup
from hpccoll.sizing.communication import Traffic
from hpccoll.sizing.perceptron_shape import LinearShape, PerceptronShape
from hpccoll.sizing.step_simulation import simulate_step


def test_a_step_of_two_stages_takes_five_slots_of_its_passes_and_waits_in_one():
    """Narayanan et al., PipeDream, 1F1B on 2 ranks: 4 micro-batches take (4 + 2 - 1) (f + b), and idle (2 - 1) (f + b).

    By hand: a stage has 2 * 4 * 4 FLOPs per sample, so f = 1 s and b = 2 s at 32 FLOP/s. 16 all_reduces of 8 bytes
    between two ranks take 8 / 128 s each: 1 s, which is 1/8 s for each of 8 passes.
    """
    linear = LinearShape(4, 4, "replicated")
    setup = TrainingSetup(PerceptronShape((linear, linear), True, True), Mesh(tp=2, pp=2), 4, 1, 4)
    machine = replace(Machine.flat(0.0, 1 / 128, 0.0), peak_flop_per_s=32.0)
    step = simulate_step(setup, machine, [Traffic("tp", "all_reduce", 16, 16 * 8, 0.0, 0.0, 2)], 1 << 20)
    assert step.traffic[0].seconds == 1
    assert step.step_s == 5 * (1 + 2 + 2 / 8)
    assert step.communication_s == step.exposed_s == 1 + (1 + 2 + 2 / 8)
    assert step.bubble == 1 / 5
