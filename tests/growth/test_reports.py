"""The picture and the page of a growth: what they say of chains, seeds, trials and runs cut short."""

import torch
from torch.nn import functional as F

from conftest_growth import GPT
from esper.growth import grow


def test_every_evaluation_and_every_reported_metric_is_a_point_of_the_curves():
    torch.manual_seed(0)
    x = torch.randint(32, (2, 8))
    values = iter(range(1000))
    for evaluate in (None, lambda: float(next(values))):
        model = GPT(1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        growth = grow(model, optimizer, total=900, policy=lambda g: None, evaluate=evaluate)
        reported = []
        while not growth.done:
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss.backward()
            optimizer.step()
            growth.step(loss)
            if evaluate is None and growth.steps % 100 == 50:
                growth.report(growth.steps)
                reported.append(float(growth.steps))
        seen = [point.metric for point in growth.history if point.metric is not None]
        assert seen == (reported if evaluate is None else [float(i) for i in range(25)])
        assert len(growth.history) < 450
