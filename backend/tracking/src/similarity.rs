use multiversion::multiversion;

/// Number of partial sums. It is fixed, so that all processors add in the same order and compute
/// the same bits.
const LANES: usize = 16;

/// Returns the dot product of two vectors, which is the cosine similarity of vectors of length 1.
/// If the lengths differ, the rest of the longer vector is ignored.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_product(a, b)
}

/// Computes the dot products of all rows of `a` with all rows of `b`. Each row has `length`
/// numbers. The product of rows i and j is at index `i * (rows of b) + j` of `out`.
#[multiversion(targets("x86_64+avx2"))]
pub fn write_dot_products(a: &[f32], b: &[f32], length: usize, out: &mut Vec<f32>) {
    out.clear();
    for row in a.chunks_exact(length) {
        out.extend(b.chunks_exact(length).map(|other_row| dot_product(row, other_row)));
    }
}

#[inline(always)]
fn dot_product(a: &[f32], b: &[f32]) -> f32 {
    let length = a.len().min(b.len());
    let (chunks_a, chunks_b) = (a[..length].chunks_exact(LANES), b[..length].chunks_exact(LANES));
    let rest: f32 = chunks_a.remainder().iter().zip(chunks_b.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0.0f32; LANES];
    for (a, b) in chunks_a.zip(chunks_b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Returns the similarity of two embeddings, -1..1; `None` if one is missing or their lengths
/// differ.
pub(crate) fn similarity(a: Option<&[f32]>, b: Option<&[f32]>) -> Option<f32> {
    let (a, b) = (a?, b?);
    (a.len() == b.len()).then(|| dot(a, b).clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_product_covers_every_component() {
        for length in [1, 15, 16, 17, 128, 513] {
            let ones = vec![1.0; length];
            let counts: Vec<f32> = (1..=length).map(|i| i as f32).collect();
            assert_eq!(dot(&ones, &counts), (length * (length + 1) / 2) as f32);
            let (mut out, pair) = (Vec::new(), [ones.clone(), counts.clone()].concat());
            write_dot_products(&pair, &ones, length, &mut out);
            assert_eq!(out, [dot(&ones, &ones), dot(&ones, &counts)]);
        }
    }

    #[test]
    fn embeddings_of_different_length_are_not_compared() {
        assert_eq!(similarity(Some(&[1.0, 0.0]), Some(&[1.0, 0.0, 0.0])), None);
        assert_eq!(similarity(Some(&[1.0]), None), None);
        assert_eq!(similarity(Some(&[0.5, 0.5]), Some(&[0.5, -0.5])), Some(0.0));
        assert_eq!(similarity(Some(&[3.0]), Some(&[3.0])), Some(1.0));
    }
}
