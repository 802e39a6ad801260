//! Makes the batch axis of a model free that was exported for one item at a time.
//!
//! Many exports fix the first axis to 1 although nothing in them depends on it, and so forbid batches. Only what the file says
//! about shapes is changed: those of inputs and outputs, and targets of `Reshape` that begin with 1, which become 0 ("as
//! the input's"). Weights are copied byte by byte, so embeddings stay comparable. Whether the model really treats its
//! items apart from each other is for the caller to prove by running it.

/// Field numbers of onnx.proto3.
mod field {
    pub(super) const MODEL_GRAPH: u64 = 7;
    pub(super) const GRAPH_NODE: u64 = 1;
    pub(super) const GRAPH_INITIALIZER: u64 = 5;
    pub(super) const GRAPH_INPUT: u64 = 11;
    pub(super) const GRAPH_OUTPUT: u64 = 12;
    pub(super) const GRAPH_VALUE_INFO: u64 = 13;
    pub(super) const NODE_INPUT: u64 = 1;
    pub(super) const NODE_OUTPUT: u64 = 2;
    pub(super) const NODE_OPERATOR: u64 = 4;
    pub(super) const NODE_ATTRIBUTE: u64 = 5;
    pub(super) const ATTRIBUTE_TENSOR: u64 = 5;
    pub(super) const TENSOR_INTEGERS: u64 = 7;
    pub(super) const TENSOR_NAME: u64 = 8;
    pub(super) const TENSOR_RAW: u64 = 9;
    pub(super) const VALUE_NAME: u64 = 1;
    pub(super) const VALUE_TYPE: u64 = 2;
    pub(super) const TYPE_TENSOR: u64 = 1;
    pub(super) const TENSOR_SHAPE: u64 = 2;
    pub(super) const SHAPE_DIMENSION: u64 = 1;
    pub(super) const DIMENSION_VALUE: u64 = 1;
    pub(super) const DIMENSION_NAME: u64 = 2;
}

/// The name of the axis that is freed.
const AXIS: &[u8] = b"batch";

/// `model` with the first axis of its inputs and outputs free. The error says what stands against it.
pub(crate) fn free(model: &[u8]) -> Result<Vec<u8>, String> {
    let mut found = false;
    let changed = rewrite(model, &mut |number, payload| {
        if number != field::MODEL_GRAPH {
            return Ok(Edit::Keep);
        }
        found = true;
        graph(payload).map(Edit::Replace)
    })?;
    if found { Ok(changed) } else { Err("the file has no graph".to_owned()) }
}

fn graph(body: &[u8]) -> Result<Vec<u8>, String> {
    // Old files list their weights among the inputs.
    let mut weights = Vec::new();
    // The second inputs of reshapes, which are constants or weights.
    let mut targets = Vec::new();
    for part in fields(body) {
        let part = part?;
        if part.number == field::GRAPH_INITIALIZER {
            weights.extend(child(part.payload, field::TENSOR_NAME)?);
        } else if part.number == field::GRAPH_NODE && operator(part.payload)? == b"Reshape" {
            let inputs = fields(part.payload).flatten().filter(|part| part.number == field::NODE_INPUT);
            targets.extend(inputs.map(|part| part.payload).nth(1));
        }
    }
    let is_target = |name: Option<&[u8]>| name.is_some_and(|name| targets.contains(&name));
    rewrite(body, &mut |number, payload| match number {
        field::GRAPH_INPUT if weights.contains(&child(payload, field::VALUE_NAME)?.unwrap_or_default()) => {
            Ok(Edit::Keep)
        }
        field::GRAPH_INPUT | field::GRAPH_OUTPUT => value(payload).map(Edit::Replace),
        // What was inferred for one item does not hold for many; the runtime infers it anew.
        field::GRAPH_VALUE_INFO => Ok(Edit::Drop),
        field::GRAPH_INITIALIZER if is_target(child(payload, field::TENSOR_NAME)?) => {
            target(payload).map(Edit::Replace)
        }
        field::GRAPH_NODE
            if operator(payload)? == b"Constant" && is_target(child(payload, field::NODE_OUTPUT)?) =>
        {
            within(payload, &[field::NODE_ATTRIBUTE, field::ATTRIBUTE_TENSOR], &mut target).map(Edit::Replace)
        }
        _ => Ok(Edit::Keep),
    })
}

fn operator(node: &[u8]) -> Result<&[u8], String> {
    Ok(child(node, field::NODE_OPERATOR)?.unwrap_or_default())
}

/// The target of a reshape, 64-bit integers, with its first entry 0 where it was 1.
fn target(tensor: &[u8]) -> Result<Vec<u8>, String> {
    rewrite(tensor, &mut |number, payload| {
        let first = match number {
            field::TENSOR_RAW => {
                payload.first_chunk::<8>().is_some_and(|first| u64::from_le_bytes(*first) == 1)
            }
            // A list of variable-length integers.
            field::TENSOR_INTEGERS => payload.first() == Some(&1),
            _ => false,
        };
        if !first {
            return Ok(Edit::Keep);
        }
        let mut changed = payload.to_vec();
        changed[0] = 0;
        Ok(Edit::Replace(changed))
    })
}

/// An input or output with its first axis free.
fn value(body: &[u8]) -> Result<Vec<u8>, String> {
    let name = String::from_utf8_lossy(child(body, field::VALUE_NAME)?.unwrap_or_default()).into_owned();
    let mut freed = false;
    let changed =
        within(body, &[field::VALUE_TYPE, field::TYPE_TENSOR, field::TENSOR_SHAPE], &mut |shape| {
            let mut first = true;
            rewrite(shape, &mut |number, dimension| {
                if number != field::SHAPE_DIMENSION || !std::mem::take(&mut first) {
                    return Ok(Edit::Keep);
                }
                let one = fields(dimension).flatten().all(|part| match part.number {
                    field::DIMENSION_VALUE => part.integer == Some(1),
                    number => number == field::DIMENSION_NAME,
                });
                if !one {
                    return Err(format!("the first axis of {name} is no batch of one"));
                }
                freed = true;
                let mut free = Vec::new();
                write(&mut free, field::DIMENSION_NAME, AXIS);
                Ok(Edit::Replace(free))
            })
        })?;
    if freed { Ok(changed) } else { Err(format!("{name} has no axes")) }
}

/// Gives a message anew.
type EditMessage<'a> = dyn FnMut(&[u8]) -> Result<Vec<u8>, String> + 'a;
/// Says what becomes of a field, by its number and payload.
type EditField<'a> = dyn FnMut(u64, &[u8]) -> Result<Edit, String> + 'a;

enum Edit {
    Keep,
    Drop,
    Replace(Vec<u8>),
}

/// Applies `edit` to the message that `path` leads to.
fn within(body: &[u8], path: &[u64], edit: &mut EditMessage<'_>) -> Result<Vec<u8>, String> {
    let [next, rest @ ..] = path else { return edit(body) };
    rewrite(body, &mut |number, payload| {
        if number == *next { within(payload, rest, edit).map(Edit::Replace) } else { Ok(Edit::Keep) }
    })
}

/// A message with its sub-messages edited; everything else is copied as it is.
fn rewrite(body: &[u8], edit: &mut EditField<'_>) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(body.len() + 64);
    for part in fields(body) {
        let part = part?;
        let change = if part.integer.is_some() { Edit::Keep } else { edit(part.number, part.payload)? };
        match change {
            Edit::Keep => out.extend_from_slice(part.whole),
            Edit::Drop => {}
            Edit::Replace(payload) => write(&mut out, part.number, &payload),
        }
    }
    Ok(out)
}

/// The payload of the first field `number`.
fn child(body: &[u8], number: u64) -> Result<Option<&[u8]>, String> {
    for part in fields(body) {
        let part = part?;
        if part.number == number {
            return Ok(Some(part.payload));
        }
    }
    Ok(None)
}

/// A field of a message: its number, its bytes with and without the key, and its value when it is an integer.
struct Field<'a> {
    number: u64,
    whole: &'a [u8],
    payload: &'a [u8],
    integer: Option<u64>,
}

fn fields(body: &[u8]) -> impl Iterator<Item = Result<Field<'_>, String>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = next(rest).ok_or_else(|| "the file is no ONNX model".to_owned());
        rest = field.as_ref().map_or(&[], |field| &rest[field.whole.len()..]);
        Some(field)
    })
}

fn next(body: &[u8]) -> Option<Field<'_>> {
    let (key, start) = varint(body, 0)?;
    let (from, to, integer) = match key & 7 {
        0 => {
            let (value, end) = varint(body, start)?;
            (start, end, Some(value))
        }
        1 => (start, start.checked_add(8)?, Some(0)),
        2 => {
            let (length, from) = varint(body, start)?;
            (from, from.checked_add(usize::try_from(length).ok()?)?, None)
        }
        5 => (start, start.checked_add(4)?, Some(0)),
        _ => return None,
    };
    Some(Field { number: key >> 3, whole: body.get(..to)?, payload: body.get(from..to)?, integer })
}

/// The number at `at` and where it ends.
fn varint(body: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for (index, byte) in body.get(at..)?.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, at + index + 1));
        }
    }
    None
}

fn write(out: &mut Vec<u8>, number: u64, payload: &[u8]) {
    for mut value in [number << 3 | 2, payload.len() as u64] {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::backend::{Backend, BatchView, OnnxModel, Placement};

    #[test]
    fn a_fixed_batch_axis_becomes_free_and_the_weights_stay() {
        let Some(path) = testing::model("mobilefacenet.onnx") else { return };
        let model = std::fs::read(path).unwrap();
        let freed = free(&model).unwrap();
        let graph = child(&freed, field::MODEL_GRAPH).unwrap().unwrap();
        let original = child(&model, field::MODEL_GRAPH).unwrap().unwrap();
        let weights = |graph: &[u8]| {
            fields(graph)
                .map(Result::unwrap)
                .filter(|part| part.number == field::GRAPH_INITIALIZER)
                .map(|part| part.payload.to_vec())
                .collect::<Vec<_>>()
        };
        assert_eq!(weights(graph), weights(original));
        assert!(free(&freed).is_ok(), "an axis that has a name may be freed again");

        // Its last node reshapes to [1, -1], which would put four embeddings into one row.
        let runtime = crate::runtime::Runtime::load(Some(&testing::library())).unwrap();
        let mut session = OnnxModel::load(&runtime, &freed, &Placement::CPU).unwrap();
        let data = vec![0.5; 4 * 3 * 112 * 112];
        let batch = BatchView { shape: [4, 3, 112, 112], data: &data };
        let mut shape = Vec::new();
        session.run(batch, &mut |outputs| shape = outputs[0].shape.clone()).unwrap();
        assert_eq!(shape, [4, 128]);
    }

    /// `inner` as field `number` of a message.
    fn message(number: u64, inner: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, number, inner);
        out
    }

    #[test]
    fn other_axes_and_other_files_are_refused() {
        // An input called "x" whose first axis has three entries.
        let three = message(field::SHAPE_DIMENSION, &[(field::DIMENSION_VALUE << 3) as u8, 3]);
        let shape = message(field::TENSOR_SHAPE, &three);
        let mut value = message(field::VALUE_NAME, b"x");
        value.extend(message(field::VALUE_TYPE, &message(field::TYPE_TENSOR, &shape)));
        let model = message(field::MODEL_GRAPH, &message(field::GRAPH_INPUT, &value));
        assert_eq!(free(&model).unwrap_err(), "the first axis of x is no batch of one");

        assert!(free(b"not an ONNX file").is_err());
        assert_eq!(free(b"").unwrap_err(), "the file has no graph");
        // Cut off in the middle of a field.
        assert!(free(&[0x3a, 0x7f, 0x01]).is_err());
    }
}
