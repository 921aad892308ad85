// Every body in every combination of formats: against the formula in doubles, the same bits wherever an element lies,
// and nothing written outside.
#include "cpu/adam_step/adam_step.h"

#include <cmath>
#include <vector>

#include "check.h"
#include "cpu/dispatch.h"

namespace {

using dsx::Dtype;
using dsx::Isa;

constexpr std::size_t guard = 8;  // elements before and after that must stay as they are
constexpr float guarded = -7.0f;

// A column of `n` elements in some format, between guards.
class Numbers {
  public:
    Numbers(Dtype dtype, std::size_t n) : dtype_(dtype), bytes_((n + 2 * guard) * dsx::size_of(dtype)) {
        for (std::size_t i = 0; i < n + 2 * guard; ++i) put(static_cast<long>(i) - static_cast<long>(guard), guarded);
    }

    void* memory() { return dtype_ == Dtype::none ? nullptr : at(0); }

    void put(long i, float value) {
        if (dtype_ == Dtype::fp32) std::memcpy(at(i), &value, 4);
        const std::uint16_t narrow = dtype_ == Dtype::bf16 ? dsx::to_bf16(value) : dsx::to_fp16(value);
        if (dsx::size_of(dtype_) == 2) std::memcpy(at(i), &narrow, 2);
    }

    float get(long i) {
        float wide = 0;
        std::uint16_t narrow = 0;
        if (dtype_ == Dtype::fp32) std::memcpy(&wide, at(i), 4);
        if (dsx::size_of(dtype_) == 2) std::memcpy(&narrow, at(i), 2);
        return dtype_ == Dtype::bf16 ? dsx::from_bf16(narrow) : dtype_ == Dtype::fp16 ? dsx::from_fp16(narrow) : wide;
    }

    bool guards_stand(long n) {
        if (dtype_ == Dtype::none) return true;
        for (long i = 1; i <= static_cast<long>(guard); ++i)
            if (get(-i) != guarded || get(n + i - 1) != guarded) return false;
        return true;
    }

    bool operator==(const Numbers& other) const { return bytes_ == other.bytes_; }

  private:
    unsigned char* at(long i) {
        return bytes_.data() + static_cast<std::size_t>(i + static_cast<long>(guard)) * dsx::size_of(dtype_);
    }

    Dtype dtype_;
    std::vector<unsigned char> bytes_;
};

struct Formats {
    Dtype shard, grad, mean, square, copy;
};

struct Columns {
    Columns(Formats f, std::size_t n)
        : formats(f), shard(f.shard, n), grad(f.grad, n), mean(f.mean, n), square(f.square, n), copy(f.copy, n) {
        for (std::size_t i = 0; i < n; ++i) {
            const long at = static_cast<long>(i);
            shard.put(at, static_cast<float>(std::sin(0.7 * static_cast<double>(i) + 1)));
            grad.put(at, static_cast<float>(std::cos(1.3 * static_cast<double>(i))));
            mean.put(at, static_cast<float>(0.1 * std::sin(2.1 * static_cast<double>(i))));
            square.put(at, static_cast<float>(0.01 * (1.1 + std::cos(0.3 * static_cast<double>(i)))));
        }
    }

    dsx::AdamTensors tensors() {
        return {shard.memory(), grad.memory(), mean.memory(), square.memory(), copy.memory(),
                formats.shard,  formats.grad,  formats.mean,  formats.square,  formats.copy};
    }

    bool operator==(const Columns& o) const {
        return shard == o.shard && grad == o.grad && mean == o.mean && square == o.square && copy == o.copy;
    }

    Formats formats;
    Numbers shard, grad, mean, square, copy;
};

double half_step(Dtype dtype) {
    return dtype == Dtype::fp32 ? 3e-7 : dtype == Dtype::bf16 ? 1.01 / 256 : 1.01 / 2048;
}

void check_near(const char* what, Isa isa, std::size_t i, double found, double wanted, Dtype dtype) {
    const double bound = half_step(dtype) * std::fabs(wanted) + 1e-7;
    CHECK(std::fabs(found - wanted) <= bound, "%s[%zu] on %s is %.9g, wanted %.9g", what, i, dsx::name_of(isa), found,
          wanted);
}

void check_formula(Isa isa, Formats formats, const dsx::AdamSettings& s, std::size_t n) {
    Columns before(formats, n);
    Columns after(formats, n);
    dsx::adam_step(after.tensors(), s, n, 1, isa);
    const double c1 = s.bias_correction ? 1 - std::pow(s.beta1, static_cast<double>(s.step)) : 1;
    const double c2 = s.bias_correction ? 1 - std::pow(s.beta2, static_cast<double>(s.step)) : 1;
    for (std::size_t i = 0; i < n; ++i) {
        const long at = static_cast<long>(i);
        double p = before.shard.get(at);
        double g = before.grad.get(at) * s.grad_factor;
        if (!s.decoupled) g += s.weight_decay * p;
        const double m = s.beta1 * before.mean.get(at) + (1 - s.beta1) * g;
        const double v = s.beta2 * before.square.get(at) + (1 - s.beta2) * g * g;
        if (s.decoupled) p *= 1 - s.lr * s.weight_decay;
        p -= s.lr / c1 * m / (std::sqrt(v / c2) + s.eps);
        check_near("exp_avg", isa, i, after.mean.get(at), m, formats.mean);
        check_near("exp_avg_sq", isa, i, after.square.get(at), v, formats.square);
        check_near("shard", isa, i, after.shard.get(at), p, formats.shard);
        if (formats.copy != Dtype::none)
            check_near("copy_out", isa, i, after.copy.get(at), p, formats.copy);
    }
    CHECK(after.grad == before.grad, "the gradient was changed on %s", dsx::name_of(isa));
    const long end = static_cast<long>(n);
    for (Numbers* column : {&after.shard, &after.mean, &after.square, &after.copy})
        CHECK(column->guards_stand(end), "wrote outside %zu elements on %s", n, dsx::name_of(isa));
}

// Cut anywhere, an element becomes the same; and so on each instruction set that rounds a multiply-add once.
void check_same_bits(Formats formats, const dsx::AdamSettings& s) {
    constexpr std::size_t n = 203;
    const dsx::AdamFactors factors(s);
    Columns whole(formats, n);
    const Isa widest = dsx::available().back();
    dsx::adam_range(widest, whole.tensors())(whole.tensors(), factors, 0, n);
    for (Isa isa : dsx::available()) {
#if defined(__x86_64__)
        if (isa == Isa::scalar && widest != Isa::scalar) continue;
#endif
        Columns cut(formats, n);
        const dsx::AdamRange range = dsx::adam_range(isa, cut.tensors());
        std::size_t begin = 0;
        for (std::size_t end : {1, 8, 40, 71, 72, 136, 203}) {
            range(cut.tensors(), factors, begin, end);
            begin = end;
        }
        CHECK(cut == whole, "%s in parts differs from %s whole", dsx::name_of(isa), dsx::name_of(widest));
    }
}

}  // namespace

int main() {
    dsx::AdamSettings adamw;
    adamw.step = 3;
    adamw.lr = 1e-2;
    adamw.weight_decay = 0.1;
    adamw.grad_factor = 0.5;
    dsx::AdamSettings adam = adamw;
    adam.decoupled = false;
    adam.bias_correction = false;
    adam.beta1 = 0.3;
    adam.beta2 = 0.95;
    for (Dtype shard : {Dtype::fp32, Dtype::bf16, Dtype::fp16})
        for (Dtype grad : {Dtype::fp32, Dtype::bf16, Dtype::fp16})
            for (Dtype mean : {Dtype::fp32, Dtype::bf16})
                for (Dtype square : {Dtype::fp32, Dtype::bf16})
                    for (Dtype copy : {Dtype::none, Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
                        const Formats formats{shard, grad, mean, square, copy};
                        for (const auto& settings : {adamw, adam}) {
                            for (Isa isa : dsx::available())
                                for (std::size_t n : {0, 1, 7, 63, 64, 65, 203})
                                    check_formula(isa, formats, settings, n);
                            check_same_bits(formats, settings);
                        }
                    }
    return failures != 0;
}
