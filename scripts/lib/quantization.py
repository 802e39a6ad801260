"""Contains the part of scripts/quantize that runs in a separate environment. It converts models to
INT8, measures the loss of accuracy, and writes the entries of the new models to packs.toml."""
import argparse
import hashlib
import json
import pathlib
import statistics
import tempfile
import time
import tomllib

import numpy
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

CHIP = 112
# Maximum number of samples of each kind. More chips do not change the result, and calibration keeps
# all activations of a batch in memory.
MOST_CHIPS, MOST_CANVASES = 400, 100
# Per-channel scales need opset 13 or newer.
OPSET = 17
# Fields of a [[file]] that are also valid for the INT8 version. `match_fmr` is not one of these
# fields, because it was measured for the original model.
KEPT = ("kind", "family", "licence", "input", "min_score", "nms_iou", "match_threshold", "cluster_margin", "dimensions")


class Samples(CalibrationDataReader):
    """Returns the tensors one after the other, for the single input of the model."""

    def __init__(self, name, tensors):
        self.feeds = iter({name: tensor} for tensor in tensors)

    def get_next(self):
        return next(self.feeds, None)


def tensor(pixels, entry):
    """Converts RGB bytes [H, W, 3] to the input of the model: [1, 3, H, W] with the values (value -
    mean) / std, in the model's order of channels."""
    values = (pixels if entry["channels"] == "rgb" else pixels[:, :, ::-1]).astype(numpy.float32)
    planes = (values - numpy.float32(entry["mean"])) / numpy.float32(entry["std"])
    return numpy.ascontiguousarray(planes.transpose(2, 0, 1)[None], dtype=numpy.float32)


def session(path):
    """Creates a session on one thread, like those of the service."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def quantize(source, target, tensors):
    """Writes `source` in INT8 to `target`. The first and last layers stay in FP32."""
    model = onnx.load(source)
    if model.opset_import[0].version < 13:
        model = onnx.version_converter.convert_version(model, OPSET)
    with tempfile.TemporaryDirectory() as scratch:
        plain, ready = pathlib.Path(scratch) / "plain.onnx", pathlib.Path(scratch) / "ready.onnx"
        onnx.save(model, plain)
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        graph = onnx.load(ready).graph
        weighted = [node.name for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
        quantize_static(
            ready,
            target,
            Samples(graph.input[0].name, tensors),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            calibrate_method=CalibrationMethod.MinMax,
            nodes_to_exclude=weighted[:2] + weighted[-2:],
        )


def outputs(model, tensors):
    name = model.get_inputs()[0].name
    return [model.run(None, {name: one}) for one in tensors]


def milliseconds(models, one, rounds=40):
    """Returns the median run time of each model in milliseconds. The models run in turn."""
    times = [[] for _ in models]
    for _ in range(rounds):
        for model, spent in zip(models, times):
            began = time.perf_counter()
            outputs(model, [one])
            spent.append(1e3 * (time.perf_counter() - began))
    return [statistics.median(spent[5:]) for spent in times]


def embedding_loss(before, after, tensors):
    """Returns the cosine of the two embeddings of each face, and the change in the similarity of
    two faces."""
    rows = [numpy.concatenate([answer[0] for answer in outputs(model, tensors)]) for model in (before, after)]
    old, new = (row / numpy.linalg.norm(row, axis=1, keepdims=True) for row in rows)
    cosine = (old * new).sum(1)
    pairs = numpy.triu_indices(len(old), 1)
    change = (new @ new.T)[pairs] - (old @ old.T)[pairs]
    return {
        "faces": len(old),
        "cosine": {"median": median(cosine), "least": round(float(cosine.min()), 4)},
        "similarity_of_two": {"bias": round(float(change.mean()), 4), "deviation": round(float(change.std()), 4)},
    }


def output_loss(before, after, tensors):
    """Returns the lowest correlation over all outputs. The correlation of an output is computed
    over all its values."""
    old, new = outputs(before, tensors), outputs(after, tensors)
    least = 1.0
    for at in range(len(old[0])):
        values = [numpy.concatenate([answer[at].ravel() for answer in answers]) for answers in (old, new)]
        least = min(least, float(numpy.corrcoef(*values)[0, 1]))
    return {"canvases": len(tensors), "least_correlation_of_an_output": round(least, 4)}


def median(values):
    return round(float(numpy.median(values)), 4)


def entry_of(original, target):
    """Returns the [[file]] entry of the new file."""
    content = target.read_bytes()
    entry = {"file": target.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "urls": []}
    return entry | {key: original[key] for key in KEPT if original.get(key) is not None}


def text(value):
    """Formats a value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {text(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(text(one) for one in value) + "]"
    # JSON shows float32 values of the manifest with the rounding noise of float64.
    return str(numpy.float32(value)) if isinstance(value, float) else json.dumps(value)


def describe(models, files, pack):
    """Writes the entries to packs.toml and replaces older entries that have the same name."""
    path = models / "packs.toml"
    document = tomllib.loads(path.read_text()) if path.exists() else {}
    names = [file["file"] for file in files]
    kept = [file for file in document.get("file", []) if file["file"] not in names]
    packs = [one for one in document.get("pack", []) if one["name"] != pack["name"]]
    lines = ["# Models that were created on this machine, in the format of models.toml.", ""]
    for table, entries in (("file", kept + files), ("pack", [*packs, pack])):
        for entry in entries:
            lines += [f"[[{table}]]", *(f"{key} = {text(value)}" for key, value in entry.items()), ""]
    path.write_text("\n".join(lines))
    return path


def main():
    parser = argparse.ArgumentParser()
    for name in ("pack", "models", "samples"):
        parser.add_argument(name, type=str if name == "pack" else pathlib.Path)
    parser.add_argument("--detector", action="store_true")
    arguments = parser.parse_args()
    samples = json.loads((arguments.samples / "samples.json").read_text())
    chips = numpy.fromfile(arguments.samples / "chips.rgb", numpy.uint8).reshape(-1, CHIP, CHIP, 3)
    canvases = [
        numpy.fromfile(arguments.samples / one["file"], numpy.uint8).reshape(one["height"], one["width"], 3)
        for one in samples["canvases"]
    ]
    if len(chips) < 50:
        raise SystemExit(f"quantize: only {len(chips)} faces were found in the photographs; at least 50 are required")
    # Faces of one photograph are similar, so whole photographs are used for the measurement only.
    owner = numpy.repeat(range(len(canvases)), [one["faces"] for one in samples["canvases"]])
    halves = {"embedder": [list(chips[owner % 2 == half][:MOST_CHIPS]) for half in (0, 1)]}
    halves["detector"] = [canvases[half::2][:MOST_CANVASES] for half in (0, 1)]
    files, report = [], {}
    for kind in ["embedder", *["detector"][: arguments.detector]]:
        original = samples[kind]
        # The weights are in FP32 here, even if the file of the pack stores them in another format.
        source = arguments.samples / f"{kind}.onnx"
        # Packs that share a model have separate INT8 versions. Otherwise, quantizing one pack again
        # would change the embeddings of the other pack.
        target = arguments.models / f"{arguments.pack}-int8_{original['file']}"
        shown, kept_back = ([tensor(one, original["input"]) for one in half] for half in halves[kind])
        quantize(source, target, shown)
        pair = session(source), session(target)
        before, after = milliseconds(pair, kept_back[0])
        loss = embedding_loss if kind == "embedder" else output_loss
        speed = {"fp32_ms": round(before, 2), "int8_ms": round(after, 2), "ratio": round(before / after, 2)}
        report[target.name] = speed | loss(*pair, kept_back)
        files.append(entry_of(original, target))
    names = {kind: samples[kind]["file"] for kind in ("detector", "embedder")} | {file["kind"]: file["file"] for file in files}
    pack = {"name": f"{arguments.pack}-int8", "description": f"{arguments.pack} in INT8, by scripts/quantize"}
    if samples["restricted"]:
        pack["restricted"] = samples["restricted"]
    pack["files"] = list(names.values())
    report["described_in"] = str(describe(arguments.models, files, pack))
    report["use_it_with"] = f"MODEL_PACK={pack['name']}"
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
