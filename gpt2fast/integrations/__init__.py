"""Where gpt2fast meets other tools: Ray, Hugging Face datasets, datatrove, Data-Juicer, lm-evaluation-harness, and
scripts that were written for minicons.  Each module needs its tool only."""
