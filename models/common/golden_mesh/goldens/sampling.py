"""Drawing the next token from candidates.

A chip draws from its own random numbers, which nothing outside it can repeat. The golden draws from torch's, so that
what it gives has the right distribution, and is right to the token where there is one candidate (k = 1, or p small).
"""
import torch

from models.common.golden_mesh.registry import golden

_generator = torch.Generator().manual_seed(0)


@golden("ttnn.sampling")
def sampling(input_values_tensor, input_indices_tensor, k, p, temp, *, seed=None, out):
    """values and their token ids [1, 1, B, W]; k, p and 1/temperature [B] -> a token id for each user.

    Of the k largest, as many as it takes for their probabilities to exceed p stay; one of those is drawn.
    """
    generator = _generator if seed is None else torch.Generator().manual_seed(seed)
    values, ids = input_values_tensor[0, 0].float(), input_indices_tensor[0, 0]
    tokens = []
    for user, (row, labels) in enumerate(zip(values, ids)):
        best, where = torch.topk(row, int(k.reshape(-1)[user]))
        probabilities = torch.softmax(best * float(temp.reshape(-1)[user]), 0)
        before = probabilities.cumsum(0) - probabilities
        probabilities[before > float(p.reshape(-1)[user])] = 0
        tokens.append(labels[where[torch.multinomial(probabilities, 1, generator=generator)]])
    return torch.cat(tokens).reshape(out.shape)


@golden("ttnn.manual_seed")
def manual_seed(seeds=0, *, device=None, user_ids=None, out):
    """Seeds the draws that follow. The tensor that the op returns means nothing."""
    seed = seeds if isinstance(seeds, int) else int(seeds.reshape(-1)[0])
    _generator.manual_seed(seed)
    return torch.zeros(out.shape)
