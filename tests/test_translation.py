"""Translation as a task: its models, its scores, and a whole comparison in small."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("sacrebleu")
pytest.importorskip("sentencepiece")


from neural_attention.cli import main
from neural_attention.compare.arms import parse_arm
from neural_attention.compare.comparison import spec_of
from neural_attention.compare.presets import choose_preset
from neural_attention.tasks.registry import load_task
from neural_attention.tasks.task import RunSpec
from neural_attention.tasks.translating import batch_of, measure, token_loss, translate_ids
from neural_attention.tasks.translation import PRESETS, TrainingPairs, Translation

TASK = Translation()
PAIRS = [(f"der Satz mit der Nummer {n * 37}", f"the sentence number {n * 37}") for n in range(200)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"{one}\t{other}\n" for one, other in PAIRS))
    return str(path)


@pytest.fixture(scope="module")
def prepared(data, tmp_path_factory):
    """The smoke preset on these data, and their description."""
    preset = choose_preset(TASK, "smoke", {"data": data})
    source, _ = TASK.read(preset, lambda line: None)
    return preset, TASK.prepare(source, preset, tmp_path_factory.mktemp("pairs"), lambda line: None)


def spec_for(prepared, name, seed=0, **changes):
    preset, description = prepared
    spec = spec_of(TASK, parse_arm(name), preset, description, "cpu", {})
    spec = spec.at(1e-3, seed)
    spec.sizes.update(changes)
    return spec


def some_batch(spec, count=4):
    examples = TASK.training_set(spec)
    return TASK.collate([examples[index] for index in range(count)])


ARMS = ["dot", "dot+alibi", "neural", "neural+none+width=4", "hybrid+roles=encoder,cross",
        "projection=mlp:qko", "neural+share_heads+layers=first", "additive",
        "hybrid+projection=residual:qkvo", "projection=karbevski"]  # fmt: skip


@pytest.mark.parametrize("name", ARMS)
def test_what_an_arm_shares_with_the_dot_product_starts_equal_and_all_of_it_learns(prepared, name):
    spec = spec_for(prepared, name, seed=3)
    base = dict(TASK.build(spec_for(prepared, "dot", seed=3)).model.named_parameters())
    built = TASK.build(spec)
    found = dict(built.model.named_parameters())
    assert {*built.shared, *built.own} == found.keys()
    assert all(torch.equal(found[name], base[name]) for name in built.shared)
    assert "model.shared.weight" in built.shared
    assert bool(built.own) == (name != "dot")
    built.model.train()(**some_batch(spec)).loss.backward()
    learned = {name: p.grad for name, p in found.items() if p.requires_grad}
    silent = [name for name, grad in learned.items() if grad is None or not grad.any()]
    # An output's shift of every score by the same number changes no weight.
    assert not [name for name in silent if not name.endswith(("k_proj.bias", "key.bias"))]


def test_a_seed_gives_the_same_start_each_time_and_another_seed_another(prepared):
    first, again, other = (
        TASK.build(spec_for(prepared, "neural", seed=seed)).model.state_dict() for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if name.endswith(("q_proj.weight", "query.weight"))]
    assert drawn
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


def test_roles_say_which_attentions_are_converted(prepared):
    model = TASK.build(spec_for(prepared, "hybrid+roles=decoder,cross")).model
    converted = {
        name for name, module in model.named_modules()
        if getattr(module, "score_network", None) is not None
    }  # fmt: skip
    places = {name.removesuffix(".neural_attention").rpartition("layers.0.")[::2]
              for name in converted}  # fmt: skip
    assert places == {("model.decoder.", "self_attn"), ("model.decoder.", "encoder_attn")}


def test_dot_products_run_on_this_librarys_kernels_and_on_torchs_for_timing(prepared):
    spec = spec_for(prepared, "dot")
    ours, torchs = TASK.build(spec).model.eval(), TASK.build(spec, "sdpa").model.eval()
    assert ours.config._attn_implementation == "neural_attention_dot"
    assert torchs.config._attn_implementation == "sdpa"
    batch = some_batch(spec)
    torch.testing.assert_close(ours(**batch).logits, torchs(**batch).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dot+rotary", "rotary positions are not this model's"),
        ("neural+slopes+roles=cross", "slopes are of distances within one sequence"),
        ("hybrid+start=preserve", "start is for pretrained models"),
        ("dot+kv_heads=1", "kv_heads: Marian has as many"),
        ("dot+roles=encoder", "roles say where an arm's attention stands"),
        ("dot+feed_forward=8", "feed_forward is 8, and the model's layers have 32"),
        ("hybrid+layers=3", "layers has 3, and the encoder attention"),
    ],
)
def test_what_marian_cannot_have_is_refused(prepared, name, says):
    with pytest.raises(ValueError, match=says):
        TASK.build(spec_for(prepared, name))


def test_a_task_with_one_kind_of_attention_refuses_roles(capsys, tmp_path):
    command = ["compare", "lm", "--preset", "smoke", "--arms", "hybrid+roles=encoder"]
    assert main([*command, "--out", str(tmp_path / "out"), "--quiet"]) == 2
    assert "roles and start are for tasks that convert models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vocab_size": "many"}, "vocab size is 'many'"),
        ({"model": "some/model", "vocab_size": "99"}, "has its own vocabulary"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        choose_preset(TASK, "smoke", options)


def test_default_arms_are_those_that_the_start_allows():
    scratch = TASK.default_arms(choose_preset(TASK, "smoke", {}))
    pretrained = TASK.default_arms(choose_preset(TASK, "smoke", {"model": "some/model"}))
    assert {"dot", "dot+alibi", "neural", "projection=mlp:qko"} <= {*scratch}
    assert {"dot", "projection=mlp:qko", "projection=residual:qko"} <= {*pretrained}


def test_other_data_do_not_keep_the_presets_languages():
    chosen = choose_preset(TASK, "paper", {"data": "mine", "model": "scratch"})
    assert (chosen.source_language, chosen.target_language, chosen.model) == (None, None, None)
    assert PRESETS["paper"].source_language == "de"


# The data as a run reads them


def test_a_run_reads_every_pair_once_a_pass():
    pairs = [(np.array([n]), np.array([n])) for n in range(7)]
    read = TrainingPairs(pairs, 14, seed=5)
    order = [int(read[index]["source"][0]) for index in range(len(read))]
    assert sorted(order[:7]) == sorted(order[7:]) == list(range(7))
    assert read.sha256 == TrainingPairs(pairs, 14, seed=5).sha256
    assert read.sha256 != TrainingPairs(pairs, 14, seed=6).sha256


def test_units_are_target_tokens_without_padding():
    batch = TASK.collate(
        [{"source": [5, 6, 7], "target": [8]}, {"source": [5], "target": [8, 9, 9]}]
    )
    assert TASK.units(batch) == 4
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[8, -100, -100], [8, 9, 9]]


# Scores


@pytest.mark.parametrize("name", ["dot", "neural+slopes"])
def test_the_loss_is_the_mean_over_target_tokens_one_sentence_at_a_time(prepared, name):
    spec = spec_for(prepared, name)
    model = TASK.build(spec).model
    pairs = list(TASK.training_set(spec).pairs)[:7]
    total = count = 0
    model.eval()
    for pair in pairs:
        with torch.no_grad():
            logits = model(**batch_of([pair])).logits[0].double()
        labels = torch.tensor(np.asarray(pair[1], dtype=np.int64))
        total -= logits.log_softmax(-1).gather(1, labels[:, None]).sum().item()
        count += len(labels)
    model.train()
    assert token_loss(model, pairs, batch_size=3) == pytest.approx(total / count, abs=1e-5)
    assert model.training


@pytest.mark.parametrize("name", ["dot", "neural", "hybrid+slopes"])
def test_translations_come_in_order_and_do_not_depend_on_the_batch(prepared, name):
    spec = spec_for(prepared, name)
    model = TASK.build(spec).model
    sources = [source for source, _ in list(TASK.training_set(spec).pairs)[:6]]
    sources[2] = sources[2][-3:]
    options = {"num_beams": 2, "max_new_tokens": 6}
    together = translate_ids(model, sources, batch_size=4, **options)
    for source, translation in zip(sources, together, strict=True):
        (alone,) = translate_ids(model, [source], batch_size=1, **options)
        # A batch is filled up to its longest translation.
        filler = [spec.sizes["pad"]] * (len(translation) - len(alone))
        assert translation == alone + filler


def test_scores_are_sacrebleus():
    sacrebleu = pytest.importorskip("sacrebleu")
    made, right = ["the cat sat on the mat", "a dog"], ["the cat is on the mat", "a small dog"]
    found = measure(made, right)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(made, [right]).score)
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(made, [right]).score)
    assert "tok:13a" in found["bleu_signature"]


# Whole comparisons


@pytest.fixture(scope="module")
def comparison(data, tmp_path_factory):
    """Two arms, two steps each."""
    out = tmp_path_factory.mktemp("comparison")
    command = ["compare", "translation", "--preset", "smoke", "--steps", "2", "--quiet"]
    command += ["--device", "cpu", "--arms", "dot", "hybrid+slopes+roles=encoder,decoder"]
    assert main([*command, "--data", data, "--out", str(out)]) == 0
    return out


def run_folder(comparison, name="dot"):
    (folder,) = comparison.glob(f"runs/{name}*")
    return folder


def test_a_comparison_keeps_scores_with_their_signatures(comparison):
    result = json.loads((comparison / "result.json").read_text())
    assert len(result["arms"]) == 2
    for arm in result["arms"].values():
        (run,) = arm["results"]
        for part, sentences in (("validation", 4), ("test", 10)):
            assert run[part].keys() >= {"bleu", "chrf", "loss"}
            assert run[part]["sentences"] == sentences
            assert run[part]["bleu_signature"].startswith("nrefs:1|")
    assert "sacreBLEU (BLEU nrefs:1" in result["protocol"]["evaluation"]
    assert any("nrefs:1" in note for note in result["notes"])
    orders = result["protocol"]["data_order"].values()
    assert all(order["same_for_all_arms"] for order in orders)


def test_a_run_is_scored_again_as_it_was(comparison):
    folder = run_folder(comparison, "hybrid")
    spec = json.loads((folder / "spec.json").read_text())
    assert spec["overrides"]["roles"] == ["encoder", "decoder"]
    spec.pop("format")
    (description,) = comparison.glob("data/*/pairs.json")
    run = RunSpec(**{**spec, "data": {**spec["data"], "folder": str(description.parent)}})
    task = load_task("translation")
    score = task.score(task.load(folder / "model", run), run, "test")
    assert score == json.loads((folder / "test.json").read_text())["score"]


def test_a_runs_model_is_a_pretrained_model_for_another_comparison(comparison, data, tmp_path):
    command = ["compare", "translation", "--preset", "smoke", "--steps", "2", "--quiet"]
    command += ["--device", "cpu", "--data", data, "--out", str(tmp_path / "out")]
    model = str(run_folder(comparison) / "model")
    assert main([*command, "--model", model, "--arms", "dot", "hybrid"]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    first = {name: arm["curves"][0][0]["validation_loss"] for name, arm in result["arms"].items()}
    assert max(first.values()) - min(first.values()) < 0.2


@pytest.mark.parametrize("name", ["hybrid", "projection=residual:qko", "dot+feed_forward=48"])
def test_a_pretrained_start_is_kept(comparison, prepared, name):
    pretrained = {"pretrained": str(run_folder(comparison) / "model")}
    spec = spec_for(prepared, name, **pretrained)
    stock = TASK.build(spec_for(prepared, "dot", **pretrained)).model.eval()
    batch = some_batch(spec)
    found = TASK.build(spec).model.eval()(**batch).logits
    torch.testing.assert_close(found, stock(**batch).logits, atol=1e-5, rtol=1e-5)


def save_opus(folder):
    """A model as those of Helsinki-NLP lie on the hub: two sentencepiece models, one vocabulary."""
    import sentencepiece
    from transformers import MarianConfig, MarianMTModel

    folder.mkdir()
    vocabulary = {"</s>": 0, "<unk>": 1}
    for side, name in enumerate(("source", "target")):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(pair[side] for pair in PAIRS),
            model_prefix=str(folder / name),
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        made = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        for index in range(3, made.get_piece_size()):
            vocabulary.setdefault(made.id_to_piece(index), len(vocabulary))
    vocabulary["<pad>"] = pad = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    names = {"source_lang": "de", "target_lang": "en", "model_max_length": 512}
    settings = {"tokenizer_class": "MarianTokenizer", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    sides = {"layers": 1, "ffn_dim": 24, "attention_heads": 2}
    sizes = {f"{side}_{n}": v for side in ("encoder", "decoder") for n, v in sides.items()}
    special = {"pad_token_id": pad, "decoder_start_token_id": pad, "vocab_size": pad + 1}
    torch.manual_seed(0)
    config = MarianConfig(d_model=16, max_position_embeddings=512, **sizes, **special)
    MarianMTModel(config).save_pretrained(folder)
    return folder


def test_a_model_with_a_tokeniser_of_marians_is_compared_and_translates(data, tmp_path, capsys):
    opus = save_opus(tmp_path / "opus")
    command = ["compare", "translation", "--preset", "smoke", "--steps", "2", "--device", "cpu"]
    command += ["--quiet", "--data", data, "--model", str(opus), "--out", str(tmp_path / "out")]
    assert main([*command, "--arms", "dot", "projection=mlp:qko"]) == 0
    (folder,) = (tmp_path / "out").glob("runs/projection*/model")
    (tmp_path / "in.txt").write_text(PAIRS[0][0] + "\n")
    capsys.readouterr()
    assert main(["translate", str(folder), str(tmp_path / "in.txt"), "--beams", "1"]) == 0
    said = capsys.readouterr()
    assert (said.out.count("\n"), said.err) == (1, "")


def test_a_start_that_cannot_be_kept_is_refused(comparison, data, tmp_path, capsys):
    command = ["compare", "translation", "--preset", "smoke", "--quiet", "--data", data]
    command += ["--out", str(tmp_path / "out"), "--model", str(run_folder(comparison) / "model")]
    assert main([*command, "--arms", "dot", "projection=mlp:qko+start=preserve"]) == 2
    said = capsys.readouterr().err
    assert "arm 'projection=mlp:qko+start=preserve': init='preserve'" in said
    assert said.count("\n") == 1


def test_a_pretrained_model_that_is_none_is_named(tmp_path, capsys):
    command = ["compare", "translation", "--preset", "smoke", "--quiet", "--out", str(tmp_path)]
    assert main([*command, "--model", str(tmp_path)]) == 2
    assert "cannot be loaded" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert main([*command, "--model", str(tmp_path)]) == 2
    assert "is a model of type 'bert': a stock 'marian' is needed" in capsys.readouterr().err


# Translating


@pytest.fixture
def translate(comparison, capsys):
    def run(*arguments, name="hybrid"):
        code = main(["translate", str(run_folder(comparison, name) / "model"), *arguments])
        return code, capsys.readouterr()

    return run


@pytest.mark.parametrize("name", ["dot", "hybrid"])
def test_a_line_in_gives_a_line_out_and_empty_lines_stay_empty(translate, tmp_path, name):
    lines = [PAIRS[n][0] * (n % 3) for n in range(12)]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    code, said = translate(str(tmp_path / "in.txt"), "--batch-size", "4", name=name)
    assert (code, said.err) == (0, "")
    translations = said.out.split("\n")
    assert translations.pop() == ""
    assert [not line for line in translations] == [not line for line in lines]
    for number in (1, 5):
        (tmp_path / "one.txt").write_text(lines[number])
        assert translate(str(tmp_path / "one.txt"), name=name)[1].out == translations[number] + "\n"


def test_standard_input_is_translated(translate, monkeypatch, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"eins\r\nzwei\n")
    with (tmp_path / "in.txt").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        code, said = translate("--beams", "1")
    assert (code, said.out.count("\n")) == (0, 2)


def test_out_is_written_whole_or_not_at_all(translate, tmp_path):
    (tmp_path / "in.txt").write_text("eins\nzwei\n")
    out = tmp_path / "out.txt"
    code, said = translate(str(tmp_path / "in.txt"), "--out", str(out))
    assert (code, said.out) == (0, "")
    assert out.read_text().count("\n") == 2
    before = out.read_text()
    (tmp_path / "in.txt").write_bytes(b"eins\n\xff\n")
    code, said = translate(str(tmp_path / "in.txt"), "--out", str(out), "--batch-size", "1")
    assert code == 2
    assert "line 2 of" in said.err
    assert "is not UTF-8: byte 0xff" in said.err
    assert out.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_a_line_that_is_too_long_is_cut_and_told(translate, tmp_path):
    (tmp_path / "in.txt").write_text("kurz\n" + "lang " * 600)
    code, said = translate(str(tmp_path / "in.txt"))
    assert code == 0
    assert said.err == "neural-attention: line 2 was cut to the 512 tokens that the model takes.\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["absent.txt"], "there is no file absent.txt to translate."),
        (["--beams", "0"], "--beams is 0: at least 1 is needed."),
        (["--device", "abacus"], "unknown device 'abacus'"),
        (["--out", "."], "--out '.' names no file."),
    ],
)
def test_mistakes_of_translate_are_told_in_one_line(translate, arguments, says):
    code, said = translate(*arguments)
    assert code == 2
    assert says in said.err
    assert said.err.count("\n") == 1


def test_a_model_that_does_not_translate_is_named(tmp_path, capsys):
    from transformers import BertConfig, BertModel

    (tmp_path / "in.txt").write_text("eins\n")
    assert main(["translate", str(tmp_path / "absent"), str(tmp_path / "in.txt")]) == 2
    assert "cannot be loaded" in capsys.readouterr().err
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=9, intermediate_size=8, **sizes)).save_pretrained(tmp_path)
    assert main(["translate", str(tmp_path), str(tmp_path / "in.txt")]) == 2
    said = capsys.readouterr().err
    assert "cannot be loaded" in said
    assert said.count("\n") == 1


def test_the_presets_are_whole():
    assert set(PRESETS) == {"smoke", "quick", "laptop", "paper"}
    for preset in PRESETS.values():
        assert preset.hidden_size % preset.num_heads == 0
