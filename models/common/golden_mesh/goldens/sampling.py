"""Drawing the next token from candidates.

A chip draws from the random numbers of its cores, one core a user, which nothing outside it can repeat. The golden
draws from torch's, a generator a user, so that what it gives has the right distribution, is repeated by the same seed,
and is right to the token where there is one candidate (k = 1, or p small).
"""

import torch

from models.common.golden_mesh.registry import golden

USERS = 32  # at most, in one sampling op
KEEP = 2**32 - 1  # the seed that means: go on with the numbers that there are


def _seed(generator: torch.Generator, seed: int, user: int) -> None:
    if seed != KEEP:
        # Users given one seed draw numbers of their own. torch looks at 32 bits of a seed.
        generator.manual_seed((seed + user * 0x9E3779B9) % 2**32)


_generators = [torch.Generator() for _ in range(USERS)]
for _user, _generator in enumerate(_generators):
    _seed(_generator, 0, _user)


@golden("ttnn.sampling")
def sampling(input_values_tensor, input_indices_tensor, k, p, temp, *, seed=None, out):
    """values and their token ids [1, 1, B, W]; k, p and 1/temperature [B] -> a token id for each user.

    Of the k largest, as many as it takes for their probabilities to exceed p stay; one of those is drawn.
    """
    k, p, inverse_temperature = (each.reshape(-1).tolist() for each in (k, p, temp))
    tokens = []
    for user, (row, ids) in enumerate(zip(input_values_tensor[0, 0].float(), input_indices_tensor[0, 0])):
        generator = _generators[user]
        if seed is not None:
            _seed(generator, seed, user)
        largest, where = torch.topk(row, k[user])
        probabilities = torch.softmax(largest * inverse_temperature[user], 0)
        before = probabilities.cumsum(0) - probabilities
        probabilities[before > p[user]] = 0
        tokens.append(ids[where[torch.multinomial(probabilities, 1, generator=generator)]])
    return torch.cat(tokens).reshape(out.shape)


@golden("ttnn.manual_seed")
def manual_seed(seeds=0, *, device=None, user_ids=None, out):
    """Seeds the draws that follow, of all users or of those named. The tensor that the op returns means nothing."""
    if user_ids is None:
        users = range(USERS)
    else:
        users = [user_ids] if isinstance(user_ids, int) else user_ids.reshape(-1).tolist()
    seeds = [seeds] * len(users) if isinstance(seeds, int) else seeds.reshape(-1).tolist()
    for user, seed in zip(users, seeds, strict=True):
        _seed(_generators[user], seed, user)
    return torch.zeros(out.shape)
