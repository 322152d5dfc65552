"""The picture of a life."""

from PIL import Image

from esper.dashboard import draw_life
from toys import germinate, toy_trainer


def test_a_life_is_drawn(tmp_path):
    trainer = toy_trainer("mlp")
    reports = [trainer.decide(germinate(trainer, "mlp"))]
    reports += [trainer.decide(trainer.space.action()) for _ in range(5)]
    draw_life(reports, tmp_path / "life.png", twin=reports, title="A life")
    with Image.open(tmp_path / "life.png") as picture:
        assert picture.width > 1000
        assert len(set(picture.convert("RGB").resize((200, 120)).get_flattened_data())) > 20
