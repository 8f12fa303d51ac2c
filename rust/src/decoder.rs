//! Ids back to bytes.

use crate::vocabulary::Vocabulary;

/// Append the bytes of the tokens to `out`.
///
/// # Errors
/// The position of the first id that is not in the vocabulary; `out` is then as far as that.
pub fn decode(vocabulary: &Vocabulary, ids: &[u32], out: &mut Vec<u8>) -> Result<(), usize> {
    out.reserve(4 * ids.len());
    for (position, &id) in ids.iter().enumerate() {
        out.extend_from_slice(vocabulary.token(id).ok_or(position)?);
    }
    Ok(())
}
