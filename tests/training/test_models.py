"""Cost model, policy and trainer learn a made-up rule, and order tasks that they have not seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.training.policy import Adam, Network, Policy, Pool, history_features
from kernel_lsp.training.ppo import PpoSettings, Trainer
from kernel_lsp.training.ranker import (
    CostModel,
    Fitted,
    Models,
    centred_log_times,
    fit_cost_model,
    read_models,
    train_models,
    write_models,
)
from kernel_lsp.training.table import ScheduleTable, TimedTask, feature_names, matrix
from tests.training.tables import made_up_table

SMALL = PpoSettings(n_iterations=10, n_warmup_iterations=6, n_picks=3)


def _pools(learned: tuple[TimedTask, ...], unseen: tuple[TimedTask, ...]) -> tuple[Pool, Pool]:
    fitted = Fitted.on(learned, seed=0)
    return fitted.pool, fitted.pool_of(unseen)


def _share(pool: Pool, policy: Policy, n_picks: int) -> float:
    times = np.take_along_axis(pool.log_times, policy.order(pool, n_picks), axis=1)
    return float(np.exp(pool.best - times.min(axis=1)).mean())


def test_gradients_agree_with_differences() -> None:
    draw = np.random.default_rng(0)
    network, x = Network.new([3, 5, 4, 1], draw), draw.normal(size=(7, 3))
    network.biases[0] += 0.3
    towards = draw.normal(size=7)
    found = network.gradients(x, towards)
    for parameter, gradient in zip(network.parameters, found, strict=True):
        parameter.flat[0] += 1e-6
        above = (network(x) * towards).sum()
        parameter.flat[0] -= 2e-6
        below = (network(x) * towards).sum()
        parameter.flat[0] += 1e-6
        assert (above - below) / 2e-6 == pytest.approx(gradient.flat[0], rel=1e-4, abs=1e-7)


def test_adam_fits_a_line() -> None:
    draw = np.random.default_rng(0)
    network, x = Network.new([2, 8, 1], draw), draw.normal(size=(64, 2))
    y, optimizer = x @ np.array([1.0, -2.0]), Adam(network, 0.02)
    before = np.abs(network(x) - y).mean()
    for _ in range(300):
        optimizer.step(network.gradients(x, 2 * (network(x) - y) / len(y)))
    assert np.abs(network(x) - y).mean() < 0.1 * before


def test_the_cost_model_orders_unseen_tasks() -> None:
    learned, unseen = made_up_table(12, seed=0).usable(), made_up_table(6, seed=1).usable()
    names = feature_names(learned)
    x = np.concatenate([matrix(task, names) for task in learned])
    model = fit_cost_model(x, centred_log_times(learned), np.random.default_rng(0))
    for task in unseen:
        best = task.times_us[np.argsort(model(matrix(task, names)))[:3]].min()
        assert best <= 1.3 * task.times_us.min()


def test_a_cost_model_of_constant_times_predicts_nothing() -> None:
    x = np.random.default_rng(0).normal(size=(50, 4))
    model = fit_cost_model(x, np.zeros(50), np.random.default_rng(0))
    assert np.abs(model(x)).max() == 0.0


def test_training_improves_the_order_of_unseen_tasks() -> None:
    """Without predictions: those of these tasks are exact, and leave nothing to learn."""
    pools = _pools(made_up_table(12, seed=0).usable(), made_up_table(8, seed=1).usable())
    pool, unseen = (replace(each, priors=np.zeros_like(each.priors)) for each in pools)
    trainer = Trainer(pool, SMALL)
    before = _share(unseen, trainer.policy, 2)
    policy = trainer.train()
    assert _share(unseen, policy, 2) > max(0.9, before)


def test_each_stabilizer_changes_the_training() -> None:
    pool, _ = _pools(made_up_table(6).usable(), made_up_table(2).usable())
    small = replace(SMALL, n_iterations=2, n_warmup_iterations=1)
    found = []
    for name in ("", "single_turn_warmup", "rejection_finetuning", "critic_pretraining"):
        policy = Trainer(pool, replace(small, **{name: False}) if name else small).train()
        found.append(policy.network.weights[0].tobytes())
    assert len(set(found)) == 4
    assert Trainer(pool, small).train().network.weights[0].tobytes() == found[0]


def test_the_history_reaches_neighbours_of_what_was_measured() -> None:
    x = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0]])
    pool = Pool.of([x], [np.array([1.0, 2.0, 3.0])], [np.array([0.0, 0.5, 0.5])])
    found = history_features(pool, np.array([[True, True, False]]), 0.5)
    assert found[0, 0, 0] == 0.5
    assert found[0, 2, 3] < 0.1 < found[0, 1, 3]
    assert found[0, 1, 2] > 0.0  # near a slower one
    assert found[0, 1, 6] > found[0, 1, 5] == found[0, 2, 5] == 0.5  # slower than predicted, and so what is near
    assert found[0, 2, 6] == pytest.approx(0.5, abs=0.01)


def test_an_untrained_policy_has_the_order_of_the_cost_model() -> None:
    tasks = made_up_table().usable()
    _, pool = _pools(tasks[:8], tasks[8:])
    policy = Policy.new(pool.x.shape[2], np.random.default_rng(0))
    policy.network.weights[-1][:] = 0.0
    for place, order in enumerate(policy.order_at_once(pool)):
        n = int(pool.exists[place].sum())
        predicted = pool.priors[place, order[1:n]]
        assert (np.diff(predicted) >= -1e-12).all()


def test_models_survive_their_file(tmp_path: Path) -> None:
    tasks = made_up_table().usable()
    models = train_models(tasks, settings=replace(SMALL, n_iterations=1, n_warmup_iterations=1))
    write_models(models, tmp_path / "models.json")
    again = read_models(tmp_path / "models.json")
    assert isinstance(again, Models)
    x = matrix(tasks[0], models.names)
    assert again.cost_model(x) == pytest.approx(models.cost_model(x), rel=1e-4)
    assert again.projection(x) == pytest.approx(models.projection(x), abs=1e-3)
    assert read_models(tmp_path / "none.json") is None


def test_a_file_of_another_version_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text('{"version": 0}')
    assert read_models(tmp_path / "models.json") is None


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    table = made_up_table(3)
    table.write(tmp_path / "table.json")
    assert ScheduleTable.read(tmp_path / "table.json") == table


def test_an_empty_model_orders_nothing() -> None:
    assert CostModel()(np.zeros((3, 2))).tolist() == [0.0, 0.0, 0.0]
