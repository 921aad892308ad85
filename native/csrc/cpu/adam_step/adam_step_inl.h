// The body of adam_step over `Lanes`. Included inside a nameless namespace, after the lanes of one instruction set.

// One column of memory in format D, seen as lanes of floats.
template <Dtype D>
struct Column {
    using Stored = std::conditional_t<D == Dtype::fp32, float, std::uint16_t>;

    static Lanes::Pair load(const Stored* from) {
        if constexpr (D == Dtype::fp32) return Lanes::load_fp32(from);
        if constexpr (D == Dtype::bf16) return Lanes::load_bf16(from);
        if constexpr (D == Dtype::fp16) return Lanes::load_fp16(from);
    }
    static void store(Stored* to, Lanes::Pair a) {
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

// Elements that are taken together: two cache lines of fp32, one of the 16-bit formats.
constexpr std::size_t block_size = 32;
constexpr std::size_t cache_line = 64;

// How far ahead of its use memory is asked for, in bytes of each column: beyond what the processor's own prefetching
// covers, and little enough for five columns to wait in the first-level cache. Less than 2 KiB gains nothing.
constexpr std::uintptr_t ahead = 3072;

static inline void ask_for(const void* block, std::size_t bytes) {
    const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(block) + ahead;
    for (std::size_t k = 0; k < bytes; k += cache_line) __builtin_prefetch(reinterpret_cast<const void*>(first + k));
}

template <Dtype P, Dtype G, Dtype M, Dtype V>
struct Body {
    using Shard = Column<P>;
    using Grad = Column<G>;
    using Mean = Column<M>;
    using Square = Column<V>;

    // The update of one register's elements.
    static inline void update(const Spread& f, Lanes::Vec& p, Lanes::Vec g, Lanes::Vec& m, Lanes::Vec& v) {
        g = Lanes::mul(g, f.grad_factor);
        if (f.decays_grad) g = Lanes::mul_add(f.decay_grad, p, g);
        m = Lanes::mul_add(f.lerp_weight, Lanes::sub(g, m), f.lerp_from_mean ? m : g);
        v = Lanes::mul_add(f.beta2, v, Lanes::mul(Lanes::mul(f.rest2, g), g));
        const Lanes::Vec below = Lanes::mul_add(Lanes::root(v), f.root_scale, f.eps);
        p = Lanes::mul_add(f.minus_rate, Lanes::div(m, below), Lanes::mul(p, f.keep));
    }

    // One block. `copy` is null, or where its new weights go in `copy_dtype`.
    static inline void block(const Spread& f, typename Shard::Stored* shard, const typename Grad::Stored* grad,
                             typename Mean::Stored* mean, typename Square::Stored* square, unsigned char* copy,
                             Dtype copy_dtype) {
        for (std::size_t k = 0; k < block_size; k += 2 * Lanes::width) {
            Lanes::Pair p = Shard::load(shard + k);
            const Lanes::Pair g = Grad::load(grad + k);
            Lanes::Pair m = Mean::load(mean + k);
            Lanes::Pair v = Square::load(square + k);
            update(f, p.low, g.low, m.low, v.low);
            update(f, p.high, g.high, m.high, v.high);
            Mean::store(mean + k, m);
            Square::store(square + k, v);
            Shard::store(shard + k, p);
            if (copy_dtype == Dtype::none) continue;
            if (copy_dtype == Dtype::fp32) Lanes::store_fp32(reinterpret_cast<float*>(copy) + k, p);
            if (copy_dtype == Dtype::bf16) Lanes::store_bf16(reinterpret_cast<std::uint16_t*>(copy) + k, p);
            if (copy_dtype == Dtype::fp16) Lanes::store_fp16(reinterpret_cast<std::uint16_t*>(copy) + k, p);
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
            ask_for(shard + i, block_size * sizeof *shard);
            ask_for(grad + i, block_size * sizeof *grad);
            ask_for(mean + i, block_size * sizeof *mean);
            ask_for(square + i, block_size * sizeof *square);
            ask_for(copy + i * copy_size, block_size * copy_size);
            block(f, shard + i, grad + i, mean + i, square + i, copy + i * copy_size, copy_dtype);
        }
        if (i < end) rest(f, copy_dtype, end - i, shard + i, grad + i, mean + i, square + i, copy + i * copy_size);
    }

    // Less than a block: through a padded one, so that each element gets the very same arithmetic.
    static void rest(const Spread& f, Dtype copy_dtype, std::size_t count, typename Shard::Stored* shard,
                     const typename Grad::Stored* grad, typename Mean::Stored* mean, typename Square::Stored* square,
                     unsigned char* copy) {
        typename Shard::Stored p[block_size] = {};
        typename Grad::Stored g[block_size] = {};
        typename Mean::Stored m[block_size] = {};
        typename Square::Stored v[block_size] = {};
        alignas(float) unsigned char c[block_size * sizeof(float)];
        std::memcpy(p, shard, count * sizeof *p);
        std::memcpy(g, grad, count * sizeof *g);
        std::memcpy(m, mean, count * sizeof *m);
        std::memcpy(v, square, count * sizeof *v);
        block(f, p, g, m, v, c, copy_dtype);
        std::memcpy(shard, p, count * sizeof *p);
        std::memcpy(mean, m, count * sizeof *m);
        std::memcpy(square, v, count * sizeof *v);
        if (copy_dtype != Dtype::none) std::memcpy(copy, c, count * size_of(copy_dtype));
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
