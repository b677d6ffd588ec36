// Rows by index: GET_ROWS and SET_ROWS.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_encode.h"

LM_DEVICE LmLong lm_id(const LmTensor& ids, LmLong i, LmLong j, LmLong k) {
    const LmByte* at = lm_at(ids, i, j, k, 0);
    return ids.type == LM_I64 ? *reinterpret_cast<const LmLong*>(at) : *reinterpret_cast<const int*>(at);
}

// dst[:, i, j, k] = src0[:, src1[i, j, k], j, k] as floats; I32 rows stay I32. An index outside the rows gives NaN (all
// bits set in I32).
extern "C" __global__ void lm_get_rows(LmArgs a) {
    LmLong n = lm_count(a.dst);
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        LmIndex at = lm_index(a.dst, i);
        LmLong id = lm_id(a.src[1], at.at[1], at.at[2], at.at[3]);
        bool inside = id >= 0 && id < a.src[0].ne[1];
        if (!inside) lm_note_index(a, id);
        const LmByte* row = lm_at(a.src[0], 0, inside ? id : 0, at.at[2], at.at[3]);
        LmByte* to = lm_at(a.dst, at);
        if (a.dst.type == LM_I32) {
            *reinterpret_cast<int*>(to) = inside ? reinterpret_cast<const int*>(row)[at.at[0]] : -1;
        } else {
            lm_store(LM_F32, to, inside ? lm_read(a.src[0].type, row, at.at[0]) : lm_nan());
        }
    }
}

// Whether a later row of the chunk goes to the same place.
LM_DEVICE bool lm_overtaken(const LmTensor& ids, LmLong id, LmLong i, LmLong end, LmLong j, LmLong k) {
    for (LmLong later = i + 1; later < end; later++) {
        if (lm_id(ids, later, j, k) == id) return true;
    }
    return false;
}

// dst[:, src1[i, j, k], j, k] = src0[:, i, j, k] for rows l[0] to l[1] (indices repeat over j and k), in dst's type; a
// thread writes a block. Of rows of the chunk with the same index the last one is written; chunks run in order. A row
// whose index is outside is not written.
extern "C" __global__ void lm_set_rows(LmArgs a) {
    int length = lm_block_length(a.dst.type), size = a.src[0].type == LM_F32 ? 4 : 2;
    LmLong first = a.l[0], end = a.l[1], blocks = a.dst.ne[0] / length;
    LmLong n = blocks * (end - first) * a.src[0].ne[2] * a.src[0].ne[3];
    for (LmLong flat = lm_first(); flat < n; flat += lm_step()) {
        LmIndex at = lm_split(flat, blocks, end - first, a.src[0].ne[2]);
        LmLong i = first + at.at[1], j = at.at[2], k = at.at[3];
        LmLong ids_j = lm_wrap_one(j, a.src[1].ne[1]), ids_k = lm_wrap_one(k, a.src[1].ne[2]);
        LmLong id = lm_id(a.src[1], i, ids_j, ids_k);
        bool inside = id >= 0 && id < a.dst.ne[1];
        if (!inside) lm_note_index(a, id);
        if (!inside || lm_overtaken(a.src[1], id, i, end, ids_j, ids_k)) continue;
        LmFloats x = {lm_at(a.src[0], 0, i, j, k) + at.at[0] * length * size, a.src[0].type};
        lm_encode(a.dst.type, x, lm_at(a.dst, at.at[0], id, j, k));
    }
}
