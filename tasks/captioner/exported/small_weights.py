"""Smaller weights for exported graphs: float16 for all, or integers for the decoder's matrices.

onnxruntime computes with float16 weights in float32. It computes products with integer matrices by the processor's
integer instructions, after rounding their inputs to 8 bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import models.onnx  # noqa: F401 -- turns off onnxruntime's telemetry
from tasks.captioner.exported.graphs import silenced

_SMALL = 1024  # weights of fewer values are not converted
_NARROW = 16  # matrices with fewer rows or columns are not quantised: there is little to save


def store_as_float16(folder: Path) -> None:
    """Store the float32 weights of an exported folder's graphs as float16; each is cast when the graph is loaded."""
    for path in sorted(folder.glob("*.onnx")):
        model = onnx.load(path)
        graph = model.graph
        casts = []
        for weight in graph.initializer:
            if weight.data_type != TensorProto.FLOAT or np.prod(weight.dims) < _SMALL:
                continue
            name, stored = weight.name, f"{weight.name}.float16"
            limit = np.finfo(np.float16).max
            values = numpy_helper.to_array(weight).clip(-limit, limit).astype(np.float16)
            weight.CopyFrom(numpy_helper.from_array(values, stored))
            casts.append(helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT))
        for index, node in enumerate(casts):
            graph.node.insert(index, node)
        onnx.save(model, path)


def quantise(folder: Path) -> None:
    """Store the matrices of a decoder's step as integers with a scale for each output channel.

    The integers have 7 bits, because products of two 8-bit numbers overflow on processors without VNNI and would change
    the captions. Other weights are stored as float16.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = folder / "step.onnx"
    model = onnx.load(path)
    _transpose_weights(model.graph)
    onnx.save(model, path)
    matrices = {weight.name for weight in model.graph.initializer if min(weight.dims, default=0) >= _NARROW}
    not_quantised = [node.name for node in model.graph.node if not matrices & set(node.input)]
    with silenced("root"):  # onnxruntime recommends simplifying the graph first, which the exporter has done
        quantize_dynamic(
            path,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=not_quantised,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    store_as_float16(folder)


def _transpose_weights(graph: onnx.GraphProto) -> None:
    """Store the weights that a graph transposes in transposed form, such as a head tied to the word embeddings."""
    weights = {weight.name: weight for weight in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Transpose" and node.input[0] in weights]:
        order = next(attribute.ints for attribute in node.attribute if attribute.name == "perm")
        values = numpy_helper.to_array(weights[node.input[0]]).transpose(order)
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), node.output[0]))
        graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    for weight in [weight for weight in graph.initializer if weight.name not in read]:
        graph.initializer.remove(weight)
