// The body of adam_step over `Lanes`. Included inside a nameless namespace, after the lanes of one instruction set.

// What is called per block must not cost a call: compilers leave it out of line when it is used in two places.
#define DSX_INLINE [[gnu::always_inline]] static inline

// One column of memory in format D, seen as lanes of floats.
template <Dtype D>
struct Column {
    using Stored = std::conditional_t<D == Dtype::fp32, float, std::uint16_t>;

    DSX_INLINE Lanes::Pair load(const Stored* from) {
        if constexpr (D == Dtype::fp32) return Lanes::load_fp32(from);
        if constexpr (D == Dtype::bf16) return Lanes::load_bf16(from);
        if constexpr (D == Dtype::fp16) return Lanes::load_fp16(from);
    }
    DSX_INLINE void store(Stored* to, Lanes::Pair a) {
        if constexpr (D == Dtype::fp32) Lanes::store_fp32(to, a);
        if constexpr (D == Dtype::bf16) Lanes::store_bf16(to, a);
        if constexpr (D == Dtype::fp16) Lanes::store_fp16(to, a);
    }
};

// The factors, one copy per lane.
struct Spread {
    explicit Spread(const AdamFactors& f)
        : grad_factor(Lanes::all(f.grad_factor)),
          decay_grad(Lanes::all(f.decay_grad)),
          keep(Lanes::all(f.keep)),
          beta2(Lanes::all(f.beta2)),
          rest2(Lanes::all(f.rest2)),
          root_scale(Lanes::all(f.root_scale)),
          eps(Lanes::all(f.eps)),
          minus_rate(Lanes::all(f.minus_rate)),
          lerp_weight(Lanes::all(f.lerp_weight)),
          lerp_from_mean(f.lerp_from_mean),
          decays_grad(f.decay_grad != 0.0f) {}

    Lanes::Vec grad_factor, decay_grad, keep, beta2, rest2, root_scale, eps, minus_rate, lerp_weight;
    bool lerp_from_mean, decays_grad;
};

// Elements that are taken together: four cache lines of fp32, two of the 16-bit formats. Within a block, two pairs of
// registers of each column are loaded before any is stored.
constexpr std::size_t block_size = 64;
constexpr std::size_t pair_size = 2 * Lanes::width;
constexpr std::size_t pairs = 2;
constexpr std::size_t cache_line = 64;

// How far ahead of its use memory is asked for, in bytes of each column: beyond what the processor's own prefetching
// covers, and little enough for five columns to wait in the first-level cache. Less than 2 KiB gains nothing.
constexpr std::uintptr_t ahead = 3072;

DSX_INLINE void ask_for(const void* block, std::size_t bytes) {
    const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(block) + ahead;
    for (std::size_t k = 0; k < bytes; k += cache_line) __builtin_prefetch(reinterpret_cast<const void*>(first + k));
}

template <Dtype P, Dtype G, Dtype M, Dtype V>
struct Body {
    using Shard = Column<P>;
    using Grad = Column<G>;
    using Mean = Column<M>;
    using Square = Column<V>;

    // Columns that advance alike are what the processor foresees by itself; asking too only costs there.
    static constexpr bool asks = P != Dtype::fp32 || G != Dtype::fp32 || M != Dtype::fp32 || V != Dtype::fp32;

    // The update of one register's elements.
    DSX_INLINE void update(const Spread& f, Lanes::Vec& p, Lanes::Vec g, Lanes::Vec& m, Lanes::Vec& v) {
        g = Lanes::mul(g, f.grad_factor);
        if (f.decays_grad) g = Lanes::mul_add(f.decay_grad, p, g);
        m = Lanes::mul_add(f.lerp_weight, Lanes::sub(g, m), f.lerp_from_mean ? m : g);
        v = Lanes::mul_add(f.beta2, v, Lanes::mul(Lanes::mul(f.rest2, g), g));
        const Lanes::Vec below = Lanes::mul_add(Lanes::root(v), f.root_scale, f.eps);
        p = Lanes::mul_add(f.minus_rate, Lanes::div(m, below), Lanes::mul(p, f.keep));
    }

    DSX_INLINE void store_copy(unsigned char* copy, Dtype copy_dtype, std::size_t at, Lanes::Pair p) {
        if (copy_dtype == Dtype::fp32) Lanes::store_fp32(reinterpret_cast<float*>(copy) + at, p);
        if (copy_dtype == Dtype::bf16) Lanes::store_bf16(reinterpret_cast<std::uint16_t*>(copy) + at, p);
        if (copy_dtype == Dtype::fp16) Lanes::store_fp16(reinterpret_cast<std::uint16_t*>(copy) + at, p);
    }

    // One block. `copy` is null, or where its new weights go in `copy_dtype`.
    DSX_INLINE void block(const Spread& f, typename Shard::Stored* shard, const typename Grad::Stored* grad,
                          typename Mean::Stored* mean, typename Square::Stored* square, unsigned char* copy,
                          Dtype copy_dtype) {
        for (std::size_t at = 0; at < block_size; at += pairs * pair_size) {
            Lanes::Pair p[pairs], g[pairs], m[pairs], v[pairs];
            for (std::size_t k = 0; k < pairs; ++k) g[k] = Grad::load(grad + at + k * pair_size);
            for (std::size_t k = 0; k < pairs; ++k) m[k] = Mean::load(mean + at + k * pair_size);
            for (std::size_t k = 0; k < pairs; ++k) v[k] = Square::load(square + at + k * pair_size);
            for (std::size_t k = 0; k < pairs; ++k) p[k] = Shard::load(shard + at + k * pair_size);
            for (std::size_t k = 0; k < pairs; ++k) {
                update(f, p[k].low, g[k].low, m[k].low, v[k].low);
                update(f, p[k].high, g[k].high, m[k].high, v[k].high);
            }
            for (std::size_t k = 0; k < pairs; ++k) Mean::store(mean + at + k * pair_size, m[k]);
            for (std::size_t k = 0; k < pairs; ++k) Square::store(square + at + k * pair_size, v[k]);
            for (std::size_t k = 0; k < pairs; ++k) Shard::store(shard + at + k * pair_size, p[k]);
            for (std::size_t k = 0; k < pairs; ++k) store_copy(copy, copy_dtype, at + k * pair_size, p[k]);
        }
    }

    static void range(const AdamTensors& t, const AdamFactors& factors, std::size_t begin, std::size_t end) {
        const Spread f(factors);
        auto* shard = static_cast<typename Shard::Stored*>(t.shard);
        auto* grad = static_cast<const typename Grad::Stored*>(t.grad);
        auto* mean = static_cast<typename Mean::Stored*>(t.exp_avg);
        auto* square = static_cast<typename Square::Stored*>(t.exp_avg_sq);
        auto* copy = static_cast<unsigned char*>(t.copy_out);
        const Dtype copy_dtype = t.copy_dtype;
        const std::size_t copy_size = size_of(copy_dtype);

        std::size_t i = begin;
        for (; i + block_size <= end; i += block_size) {
            if constexpr (asks) {
                ask_for(shard + i, block_size * sizeof *shard);
                ask_for(grad + i, block_size * sizeof *grad);
                ask_for(mean + i, block_size * sizeof *mean);
                ask_for(square + i, block_size * sizeof *square);
                ask_for(copy + i * copy_size, block_size * copy_size);
            }
            block(f, shard + i, grad + i, mean + i, square + i, copy + i * copy_size, copy_dtype);
        }
        if (i < end) rest(t, factors, i, end - i);
    }

    // Less than a block: through a padded one, so that each element gets the very same arithmetic.
    static void rest(const AdamTensors& t, const AdamFactors& factors, std::size_t at, std::size_t count) {
        typename Shard::Stored shard[block_size] = {};
        typename Grad::Stored grad[block_size] = {};
        typename Mean::Stored mean[block_size] = {};
        typename Square::Stored square[block_size] = {};
        alignas(float) unsigned char copy[block_size * sizeof(float)];
        AdamTensors padded = t;
        const auto lend = [&](void* column, void* room, std::size_t size) {
            std::memcpy(room, static_cast<unsigned char*>(column) + at * size, count * size);
            return room;
        };
        padded.shard = lend(t.shard, shard, sizeof *shard);
        padded.grad = lend(const_cast<void*>(t.grad), grad, sizeof *grad);
        padded.exp_avg = lend(t.exp_avg, mean, sizeof *mean);
        padded.exp_avg_sq = lend(t.exp_avg_sq, square, sizeof *square);
        padded.copy_out = copy;
        range(padded, factors, 0, block_size);
        const auto give_back = [&](void* column, const void* room, std::size_t size) {
            std::memcpy(static_cast<unsigned char*>(column) + at * size, room, count * size);
        };
        give_back(t.shard, shard, sizeof *shard);
        give_back(t.exp_avg, mean, sizeof *mean);
        give_back(t.exp_avg_sq, square, sizeof *square);
        if (t.copy_dtype != Dtype::none) give_back(t.copy_out, copy, size_of(t.copy_dtype));
    }
};

template <Dtype P, Dtype G, Dtype M>
AdamRange pick_square(Dtype v) {
    switch (v) {
        case Dtype::fp32: return Body<P, G, M, Dtype::fp32>::range;
        case Dtype::bf16: return Body<P, G, M, Dtype::bf16>::range;
        default: return nullptr;
    }
}

template <Dtype P, Dtype G>
AdamRange pick_mean(Dtype m, Dtype v) {
    switch (m) {
        case Dtype::fp32: return pick_square<P, G, Dtype::fp32>(v);
        case Dtype::bf16: return pick_square<P, G, Dtype::bf16>(v);
        default: return nullptr;
    }
}

template <Dtype P>
AdamRange pick_grad(Dtype g, Dtype m, Dtype v) {
    switch (g) {
        case Dtype::fp32: return pick_mean<P, Dtype::fp32>(m, v);
        case Dtype::bf16: return pick_mean<P, Dtype::bf16>(m, v);
        case Dtype::fp16: return pick_mean<P, Dtype::fp16>(m, v);
        default: return nullptr;
    }
}

AdamRange pick(const AdamTensors& t) {
    switch (t.shard_dtype) {
        case Dtype::fp32: return pick_grad<Dtype::fp32>(t.grad_dtype, t.exp_avg_dtype, t.exp_avg_sq_dtype);
        case Dtype::bf16: return pick_grad<Dtype::bf16>(t.grad_dtype, t.exp_avg_dtype, t.exp_avg_sq_dtype);
        case Dtype::fp16: return pick_grad<Dtype::fp16>(t.grad_dtype, t.exp_avg_dtype, t.exp_avg_sq_dtype);
        default: return nullptr;
    }
}
