"""A text that the demo model knows, and a tiny model that knows nothing, with the same tokens."""

from __future__ import annotations

import seeded

from gpt2fast.checkpoint.config import Config
from gpt2fast.language_model import LanguageModel
from gpt2fast.model.gpt2 import GPT2
from gpt2fast.tokenizer.encoding import Tokenizer

TALE = (
    "Once upon a time there lived in a little house under a hill an old woman and her two children. They were very "
    "poor, and had nothing to eat but what the old woman could find in the wood. One day, when the snow lay deep upon "
    "the ground, she said to her son, “Go, my child, and see whether you can find a few sticks for the fire.” So the "
    "boy went out; and as he went along he met a fox, who was sitting at the foot of a tree, and weeping bitterly.\n\n"
    "“What is the matter, dear fox?” asked the boy. “Alas!” said the fox, “I have lost my golden ring, and if I do not "
    "bring it back to the king before the sun goes down, he will cut off my tail.” Then the boy looked about him, and "
    "there, beneath the roots of the tree, he saw something that shone like a star. He put in his hand, and drew out "
    "the ring, and gave it to the fox, who thanked him with all his heart, and ran away over the snow.\n\n"
    "Now when the boy came home again without a single stick, his mother was very angry, and beat him, and sent him to "
    "bed without his supper. But in the middle of the night there came a knock at the door, and when she opened it, "
    "there stood a servant in a green coat, with a lantern in his hand. “My master has sent me,” said he, “to fetch "
    "the boy who found the ring.” The old woman was frightened, and did not know what to say; but the boy had already "
    "put on his shoes, and followed the servant through the wood, until they came to a great castle, of which all the "
    "windows were bright, and the sound of music was heard from within. In the hall sat the king upon a golden throne, "
    "and beside him stood the fox, but now he was a handsome prince, who took the boy by the hand, and led him to the "
    "table, and gave him meat and wine. “You have set me free,” he said; “half of my kingdom shall be yours, and your "
    "mother and sister shall never be hungry again.” And so it came to pass, and if they have not died, they are "
    "living there still.\n"
)

ANOTHER = (
    "There was once a miller who had three sons, and when he died he left to the eldest his mill, to the second his "
    'ass, and to the youngest nothing but a cat. The youngest was sad at heart, and said to himself, "What shall I do '
    'with a cat? If I have a pair of gloves made of his skin, there will be nothing left of it." But the cat had heard '
    'every word, and began to speak. "You need not kill me," he said; "only let a pair of boots be made for me, so '
    'that I can go out and be seen among the people, and you shall soon be helped."\n'
)


def tiny(dtype: str, num_threads: int, tokenizer: Tokenizer) -> LanguageModel:
    """A model that knows nothing, with the tokens of the demo model and a context of 16 of them."""
    config = Config(vocab_size=4096, n_ctx=16, n_embd=64, n_layer=2, n_head=2, eos_token_id=4095)
    model = GPT2.from_tensors(config, seeded.tensors(config), dtype=dtype, num_threads=num_threads)
    return LanguageModel(model, tokenizer)
