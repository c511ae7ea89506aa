"""The attention viewer as a person uses it: clicked, hovered, by keyboard, on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import neural_attention as na
from neural_attention.activations import resolve
from neural_attention.report import viewer
from neural_attention.report.maps import collect_maps

WORDS = ["The", " cat", " sat", " on", " the", " mat", ",", " because", " it", " was", " tired"]
SCHEMES = ("light", "dark")
HOSTILE = (
    "<script>window.struck=1</script>",
    "</script><img src=x onerror=window.struck=1>",
    "\"'`${window.struck=1}<!--",
    "]]><svg onload=window.struck=1>",
    "&lt;b&gt;&amp;",
    "\u202egnitirw",
    "مرحبا بالعالم",
    "x" * 400,
    "\x00\x07\x1b[31m",
    "\ud800\udfff"[0],
    "https://example.org/a.png",
    "\u2028line\u2029",
)


class Stack(torch.nn.Module):
    """Layers of this library one after another."""

    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x, is_causal=True)
        return x


def stack(**options: Any) -> Stack:
    torch.manual_seed(1)
    return Stack(*(na.NeuralAttention(32, 4, **options) for _ in range(3)))


def inputs(length: int = len(WORDS)) -> torch.Tensor:
    torch.manual_seed(2)
    return 3 * torch.randn(1, length, 32)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    torch.manual_seed(0)
    image = transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            image_size=16, patch_size=4, initializer_range=0.3,
        )
    )  # fmt: skip
    translation = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=61, pad_token_id=0, d_model=32, encoder_layers=2, decoder_layers=3,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
            decoder_ffn_dim=48, init_std=0.3, decoder_start_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    ids = {
        "input_ids": torch.randint(3, 61, (1, 4)),
        "decoder_input_ids": torch.randint(3, 61, (1, 5)),
    }
    words = (["Das", " ist", " gut", "."], ["[start]", " This", " is", " good", "."])
    na.hf.convert(translation, score="hybrid", init="random", layers={"cross": None})
    two = {"against": stack(score="dot"), "names": ("neural", "dot")}
    made = {
        "one": na.view(stack(), inputs(), WORDS),
        "two": na.view(stack(), inputs(), WORDS, **two),
        "image": na.view(image, {"pixel_values": torch.rand(1, 3, 16, 16)}),
        "translation": na.view(translation, ids, words),
        "hostile": na.view(
            stack(), inputs(len(HOSTILE)), HOSTILE, against=stack(), names=HOSTILE[:2],
            title=HOSTILE[1],
        ),
    }  # fmt: skip
    return {name: page.save(folder / f"{name}.html") for name, page in made.items()}


def expect(locator: Any) -> Any:
    """Playwright's assertions, which wait; imported here, as it may not be installed."""
    from playwright.sync_api import expect as expect_of

    return expect_of(locator)


def focused(page: Any) -> str:
    return page.evaluate("document.activeElement.getAttribute('aria-label') || ''")


def chosen(page: Any, token: str) -> None:
    """Wait until the list of strongest keys is of this query."""
    expect(page.locator("#strongest-title")).to_contain_text(token)


def strongest(page: Any) -> list[str]:
    return page.locator("#strongest li").all_inner_texts()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("name", ["two", "image", "translation"])
def test_pages_are_accessible_and_fit_the_screen(
    pages, open_page, check_accessibility, name, size, scheme
):
    page = open_page(pages[name], size, color_scheme=scheme)
    check_accessibility(page)
    page.locator(".thumb").nth(1).click()
    page.wait_for_selector("#strongest li")
    check_accessibility(page)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= page.viewport_size["width"]


def test_a_click_opens_a_map_and_its_numbers_are_the_models(pages, open_page):
    page = open_page(pages["one"])
    expect(page.locator(".thumb")).to_have_count(12)
    page.get_by_role("button", name="Layer 2, head 3").click()
    expect(page.get_by_role("heading", name="Layer 2 · Head 3")).to_be_visible()
    page.wait_for_selector("#strongest li")
    weights = collect_maps(stack(), {"": inputs()})[1].weights[2]
    tokens = page.locator("[role=option]")
    for query in (10, 4):
        tokens.nth(query).click()
        chosen(page, f"({query + 1})")
        values, keys = weights[query].topk(min(5, query + 1))
        for line, value, key in zip(strongest(page), values, keys, strict=True):
            word, shown = line.split()[0], line.split()[-1]
            assert word == WORDS[key].strip()
            assert abs(float(shown) - value) < float(weights[query].max()) / 127 + 0.005


def test_a_hovered_token_lights_its_row(pages, open_page):
    page = open_page(pages["one"])
    page.locator(".thumb").first.click()
    title = page.locator("#strongest-title")
    page.wait_for_selector("#strongest li")
    assert "tired" in title.inner_text()
    canvas = "document.querySelector('#maps canvas').toDataURL()"
    before = page.evaluate(canvas)
    page.locator("[role=option]").nth(5).hover()
    chosen(page, "mat")
    assert page.evaluate(canvas) != before
    page.locator("#title").hover()
    chosen(page, "tired")
    assert page.evaluate(canvas) == before
    # The same on the map: its first row is the first token's.
    box = page.locator("#maps canvas").bounding_box()
    page.mouse.move(box["x"] + 150, box["y"] + 70)
    expect(title).not_to_contain_text("tired")


def test_everything_can_be_done_with_the_keyboard(pages, open_page):
    page = open_page(pages["one"])
    page.keyboard.press("Tab")
    assert focused(page).startswith("Layer 1, head 1")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    assert focused(page).startswith("Layer 2, head 2")
    page.keyboard.press("Enter")
    heading = page.locator("#detail-title")
    expect(heading).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(heading).to_have_text("Layer 2 · Head 3")
    page.keyboard.press("ArrowUp")
    expect(heading).to_have_text("Layer 1 · Head 3")
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("(e => e.getAttribute('role') || e.localName)(document.activeElement)")
        )
    assert {"button", "option", "select", "input", "region"} <= reached
    page.locator("[role=option][tabindex='0']").focus()
    page.keyboard.press("Home")
    expect(page.locator("[role=option]").first).to_be_focused()
    chosen(page, "The")
    assert heading.inner_text() == "Layer 1 · Head 3"  # arrows of tokens moved no head
    page.keyboard.press("Escape")
    expect(heading).to_be_hidden()
    assert focused(page).startswith("Layer 1, head 3")


def test_two_models_stand_side_by_side_with_their_difference(pages, open_page):
    page = open_page(pages["two"])
    page.locator("#arms label", has_text="Difference").click()
    page.locator(".thumb").nth(6).click()
    page.wait_for_selector("#strongest li")
    expect(page.locator("#maps figcaption")).to_have_text(["neural", "dot", "Difference"])
    first, second = (
        collect_maps(model, {"": inputs()})[1].weights[2] for model in (stack(), stack(score="dot"))
    )
    row = (first - second)[-1]
    line = strongest(page)[0]
    assert line.split()[0] == WORDS[row.abs().argmax()].strip()
    shown = float(line.split()[-1].replace("−", "-"))
    assert abs(shown - row[row.abs().argmax()]) < 0.02


def test_an_encoder_decoder_has_three_kinds_of_maps(pages, open_page):
    page = open_page(pages["translation"])
    counts = {"Decoder": 12, "Encoder": 8, "Cross-attention": 12}
    for name in counts:
        page.locator("#roles label", has_text=name).click()
        expect(page.locator(".thumb")).to_have_count(counts[name])
    page.locator(".thumb").first.click()
    page.wait_for_selector("#strongest li")
    expect(page.locator("[role=option]")).to_have_count(5)  # of the target
    expect(page.locator(".keys .token")).to_have_count(4)  # of the source
    assert "hybrid" in page.locator("#score").inner_text()


def test_heat_lies_over_the_patches_of_an_image(pages, open_page):
    page = open_page(pages["image"])
    page.locator(".thumb").first.click()
    patches = page.locator(".patches [role=option]")
    expect(patches).to_have_count(16)
    page.wait_for_function("document.querySelector('.patches img').complete")
    page.wait_for_selector("#strongest li")
    image = page.locator(".patches img").bounding_box()
    patch = patches.nth(5).bounding_box()
    assert abs(patch["x"] - image["x"] - image["width"] / 4) < 1
    assert abs(patch["y"] - image["y"] - image["height"] / 4) < 1
    patches.nth(5).click()
    chosen(page, "2,2")
    veils = patches.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert len(set(veils)) > 8
    page.keyboard.press("ArrowDown")
    chosen(page, "3,2")


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_hostile_strings_neither_break_nor_script_a_page(pages, open_page, size):
    page = open_page(pages["hostile"], size)
    assert page.title() == HOSTILE[1]
    assert page.locator("#title").inner_text() == HOSTILE[1]
    page.locator(".thumb").first.click()
    page.wait_for_selector("#strongest li")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
    shown = page.locator("[role=option]").all_text_contents()
    assert shown[:3] == list(HOSTILE[:3])
    assert shown[5] == "\\u202egnitirw"
    assert shown[8] == "␀␇␛[31m"
    assert page.evaluate("window.struck") is None
    assert page.locator("img, svg").count() == 0
    assert page.evaluate("document.querySelectorAll('script').length") == page.evaluate(
        "document.querySelectorAll('script[type]').length"
    )
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= page.viewport_size["width"]


def test_a_page_can_reach_no_network_and_run_nothing_added(pages, browser):
    page = browser.new_page()
    left = []  # the page: Chromium tells of requests that it refused to make, too
    page.on("requestfinished", lambda request: left.append(request.url))
    page.on("requestfailed", lambda request: left.append(f"{request.url} {request.failure}"))
    page.goto(pages["one"].as_uri())
    page.wait_for_selector("html[data-ready]")
    refused = page.evaluate(
        """async () => {
          const refused = [];
          const note = (event) => refused.push(event.effectiveDirective);
          addEventListener("securitypolicyviolation", note);
          await fetch("https://example.org/").catch(() => {});
          new Image().src = "https://example.org/a.png";
          const script = document.createElement("script");
          script.textContent = "window.struck = 1";
          document.body.append(script);
          const style = document.createElement("style");
          style.textContent = "body { display: none }";
          document.body.append(style);
          await new Promise((done) => setTimeout(done, 100));
          return [refused.sort(), window.struck ?? null];
        }"""
    )
    page.close()
    assert refused == [["connect-src", "img-src", "script-src-elem", "style-src-elem"], None]
    others = [one for one in left if not one.startswith(("file:", "data:"))]
    assert others == ["https://example.org/a.png csp"]


NETWORKS = {
    "relu": {},
    "leaky_relu": {"activation": "leaky_relu:0.2"},
    "gelu": {"activation": "gelu", "hidden": [3]},
    "gelu_tanh": {"activation": "gelu_tanh", "share_heads": True},
    "silu": {"activation": "silu", "hidden": [2], "share_heads": True},
    "hardswish": {"activation": "hardswish"},
    "tanh": {"activation": "tanh"},
}


@pytest.mark.parametrize("network", NETWORKS)
def test_the_surface_is_the_networks_own(open_page, tmp_path, network):
    torch.manual_seed(3)
    model = na.NeuralAttention(32, 2, score_network={"width": 6, **NETWORKS[network]})
    with torch.no_grad():
        for parameter in model.score_network.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    page = open_page(na.view(model, inputs(), WORDS).save(tmp_path / "page.html"))
    page.locator(".thumb").nth(1).click()
    page.locator("#score select").first.select_option("b4")
    page.locator("#score select").nth(1).select_option("a1")
    page.locator("#score input").fill("3")
    said = page.locator("#score canvas[role=img]").get_attribute("aria-label")

    (site,) = collect_maps(model, {"": inputs()})
    a, b = site.score.a[1], site.score.b[1]
    u = (a[-1] + b.mean(0) + 3 * model.slopes[1]).expand(72, 72, -1).clone()
    for channel, values, held, axis in ((4, b[:, 4], b[:, 4].mean(), 1), (1, a[:, 1], a[-1, 1], 0)):
        margin = 0.12 * (values.max() - values.min())
        low, high = values.min() - margin, values.max() + margin
        steps = low + (torch.arange(72) + 0.5) / 72 * (high - low) - held
        u[..., channel] += steps[None] if axis else steps[:, None]
    sigma = resolve(model.score_network.activation)
    output, hidden = model.score_network.weights()
    units = sigma(u)
    for weight, bias in hidden:
        units = sigma(units @ weight[-1].T + bias[-1])
    scores = (units @ output[-1]).detach()
    shown = [float(part.replace("−", "-")) for part in said.split(" from ")[1].split(" to ")]
    expected = [float(scores.min()), float(scores.max())]
    assert shown == pytest.approx(expected, rel=0.06, abs=0.02)


def test_long_inputs_are_reduced_and_the_page_says_so(open_page, tmp_path, monkeypatch):
    length = 300
    monkeypatch.setattr(viewer, "BUDGET", 90_000)
    model = stack(score="dot")
    page = open_page(na.view(model, inputs(length)).save(tmp_path / "page.html"), "phone")
    assert "stands for" in page.locator("#notes").inner_text()
    page.locator(".thumb").nth(4).click()
    page.wait_for_selector("#strongest li")
    values, keys = collect_maps(model, {"": inputs(length)})[1].weights[0, -1].topk(5)
    lines = [line.split() for line in strongest(page)]
    assert [int(line[0]) for line in lines] == [int(key) + 1 for key in keys]
    assert [float(line[-1]) for line in lines] == pytest.approx(values.tolist(), rel=0.06)


def test_print_leaves_out_controls_and_reduced_motion_moves_nothing(pages, open_page):
    page = open_page(pages["two"], reduced_motion="reduce")
    duration = "getComputedStyle(document.querySelector('.thumb')).transitionDuration"
    assert page.evaluate(duration) == "0s"
    page.locator(".thumb").first.click()
    page.wait_for_selector("#strongest li")
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("#arms")).to_be_hidden()
    expect(page.locator("#maps canvas").first).to_be_visible()
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(255, 255, 255)"


def test_a_notebook_shows_the_page_in_a_frame(browser, tmp_path):
    shown = na.view(stack(), inputs(), WORDS)._repr_html_()
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>notebook</title>{shown}", encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator(".thumb").nth(2).click()
    expect(frame.locator("#detail-title")).to_have_text("Layer 1 · Head 3")
    page.close()
