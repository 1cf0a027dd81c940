"""Small configs of every model family the tracer is tested on: same structure, tiny sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from transformers import PretrainedConfig

_SIZE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
}
_MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_GPT = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 256, "n_positions": 8192}


def _config(name: str, **settings: Any) -> Callable[[], PretrainedConfig]:
    """A config of transformers' class ``name``, at the common small size."""
    return lambda: getattr(transformers, name)(**{**_SIZE, **settings})


def _bare(name: str, **settings: Any) -> Callable[[], PretrainedConfig]:
    """A config whose class names its sizes in its own way."""
    return lambda: getattr(transformers, name)(**settings)


#: Families by how their tokens mix; each entry makes a fresh config.
ATTENTION: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": _config("LlamaConfig"),
    "mistral": _config("MistralConfig", sliding_window=32),
    "qwen2": _config("Qwen2Config"),
    "qwen3": _config("Qwen3Config", head_dim=16),
    "gemma": _config("GemmaConfig", head_dim=16),
    "gemma2": _config("Gemma2Config", head_dim=16, sliding_window=32),
    "gemma3_text": _config("Gemma3TextConfig", head_dim=16, sliding_window=32),
    "phi": _config("PhiConfig"),
    "phi3": _config("Phi3Config"),
    "gpt2": _bare("GPT2Config", **_GPT),
    "gpt_neo": _bare(
        "GPTNeoConfig",
        hidden_size=64,
        num_layers=4,
        num_heads=4,
        vocab_size=256,
        attention_types=[[["global", "local"], 2]],
        max_position_embeddings=512,
    ),
    "gpt_neox": _config("GPTNeoXConfig"),
    "gptj": _bare("GPTJConfig", **_GPT, rotary_dim=8),
    "opt": _config("OPTConfig", ffn_dim=96, word_embed_proj_dim=64),
    "bloom": _bare("BloomConfig", hidden_size=64, n_layer=4, n_head=4, vocab_size=256),
    "falcon": _config("FalconConfig", multi_query=True),
    "mpt": _bare("MptConfig", d_model=64, n_layers=4, n_heads=4, vocab_size=256, max_seq_len=512),
    "stablelm": _config("StableLmConfig"),
    "starcoder2": _config("Starcoder2Config"),
    "olmo": _config("OlmoConfig"),
    "olmo2": _config("Olmo2Config"),
    "cohere": _config("CohereConfig"),
    "cohere2": _config("Cohere2Config", sliding_window=32),
    "granite": _config("GraniteConfig"),
    "glm": _config("GlmConfig", head_dim=16),
    "glm4": _config("Glm4Config", head_dim=16),
    "smollm3": _config("SmolLM3Config"),
}
MIXTURE: dict[str, Callable[[], PretrainedConfig]] = {
    "gpt_oss": _config("GptOssConfig", head_dim=16, num_local_experts=8, sliding_window=32),
    "mixtral": _config("MixtralConfig", num_local_experts=4),
    "qwen2_moe": _config(
        "Qwen2MoeConfig",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=64,
    ),
    "qwen3_moe": _config(
        "Qwen3MoeConfig",
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
    ),
    "dbrx": _bare(
        "DbrxConfig",
        d_model=64,
        n_heads=4,
        n_layers=4,
        vocab_size=256,
        max_seq_len=512,
        attn_config={"kv_n_heads": 2, "clip_qkv": 8.0},
        ffn_config={
            "hidden_size": 64,
            "ffn_hidden_size": 96,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    ),
    "deepseek_v2": _config("DeepseekV2Config", **{**_MLA, "topk_method": "greedy", "head_dim": 8}),
    "deepseek_v3": _config("DeepseekV3Config", **_MLA),
    "llama4_text": _config(
        "Llama4TextConfig",
        head_dim=16,
        intermediate_size_mlp=128,
        num_local_experts=4,
        attention_chunk_size=32,
        interleave_moe_layer_step=2,
    ),
    "granitemoe": _config("GraniteMoeConfig", num_local_experts=4, num_experts_per_tok=2),
    "olmoe": _config("OlmoeConfig", num_experts=8, num_experts_per_tok=2),
    "phimoe": _config("PhimoeConfig", num_local_experts=4),
    "ernie4_5_moe": _config(
        "Ernie4_5_MoeConfig", moe_num_experts=8, moe_k=2, moe_intermediate_size=48
    ),
    "jetmoe": _config(
        "JetMoeConfig",
        kv_channels=16,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
}
_MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}
SCANS: dict[str, Callable[[], PretrainedConfig]] = {
    "minimax": _config(
        "MiniMaxConfig",
        head_dim=16,
        block_size=16,
        num_local_experts=4,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
    "mamba": _bare(
        "MambaConfig", hidden_size=64, num_hidden_layers=4, state_size=8, vocab_size=256
    ),
    "mamba2": _bare(
        "Mamba2Config",
        hidden_size=64,
        num_hidden_layers=4,
        num_heads=8,
        head_dim=16,
        state_size=16,
        n_groups=1,
        chunk_size=16,
        vocab_size=256,
    ),
    "falcon_mamba": _bare(
        "FalconMambaConfig", hidden_size=64, num_hidden_layers=4, state_size=8, vocab_size=256
    ),
    "rwkv": _bare("RwkvConfig", hidden_size=64, num_hidden_layers=4, vocab_size=256),
    "recurrent_gemma": _config(
        "RecurrentGemmaConfig",
        num_hidden_layers=6,
        lru_width=64,
        attention_window_size=32,
    ),
    "zamba": _config(
        "ZambaConfig",
        num_hidden_layers=6,
        num_key_value_heads=4,
        attn_layer_period=3,
        attn_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
    ),
    "zamba2": _config(
        "Zamba2Config",
        num_hidden_layers=6,
        num_key_value_heads=4,
        mamba_d_state=16,
        chunk_size=16,
        layers_block_type=["mamba", "mamba", "hybrid"] * 2,
    ),
    "jamba": _config(
        "JambaConfig",
        attn_layer_period=4,
        attn_layer_offset=1,
        num_experts=4,
        mamba_d_state=8,
        mamba_dt_rank=4,
    ),
    "bamba": _config("BambaConfig", **_MAMBA2, attn_layer_indices=[1, 3]),
    "falcon_h1": _config("FalconH1Config", **_MAMBA2, mamba_d_ssm=128),
    "xlstm": _bare(
        "xLSTMConfig",
        hidden_size=256,
        num_heads=4,
        num_hidden_layers=4,
        num_blocks=4,
        vocab_size=256,
        chunk_size=16,
    ),
    "qwen3_next": _config(
        "Qwen3NextConfig",
        head_dim=16,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=48,
    ),
    "kimi_linear": _config(
        "KimiLinearConfig",
        num_key_value_heads=4,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        num_experts=8,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
    "olmo_hybrid": _config(
        "OlmoHybridConfig",
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    ),
    "granitemoehybrid": _config(
        "GraniteMoeHybridConfig",
        **_MAMBA2,
        num_local_experts=4,
        shared_intermediate_size=64,
        layers_block_type=["mamba", "attention"] * 2,
        layer_types=["mamba", "attention"] * 2,
    ),
    "nemotron_h": _bare(
        "NemotronHConfig",
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=256,
        mamba_num_heads=8,
        mamba_head_dim=16,
        ssm_state_size=16,
        n_groups=2,
        chunk_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        moe_shared_expert_intermediate_size=48,
        layers_block_type=["mamba", "moe", "mamba", "attention", "mamba", "moe"],
    ),
    "lfm2": _config("Lfm2Config", layer_types=["conv", "full_attention"] * 2),
}
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {**ATTENTION, **MIXTURE, **SCANS}

_VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}
#: Models of one or more labelled parts besides a single causal decoder.
PARTS: dict[str, Callable[[], PretrainedConfig]] = {
    "bert": _config("BertConfig"),
    "t5": _bare(
        "T5Config", d_model=64, d_kv=16, d_ff=96, num_layers=3, num_heads=4, vocab_size=256
    ),
    "bart": _bare(
        "BartConfig",
        vocab_size=256,
        d_model=64,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
    ),
    "whisper": _bare(
        "WhisperConfig",
        vocab_size=256,
        d_model=64,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_source_positions=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    ),
    "vit": _bare("ViTConfig", **_VISION),
    "clip": _bare(
        "CLIPConfig",
        text_config={k: v for k, v in _SIZE.items() if k != "num_key_value_heads"},
        vision_config=_VISION,
        projection_dim=32,
    ),
    "llava": _bare(
        "LlavaConfig",
        text_config={"model_type": "llama", **_SIZE},
        vision_config={"model_type": "clip_vision_model", **_VISION},
    ),
    "qwen2_vl": _bare(
        "Qwen2VLConfig",
        text_config={
            **_SIZE,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]},
        },
        vision_config={"depth": 3, "embed_dim": 64, "hidden_size": 64, "num_heads": 4},
    ),
}
