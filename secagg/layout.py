"""The ring layout that follows from public bounds; both sides compute it, so that neither has to trust the other."""

from collections.abc import Iterable

from secagg.ring import Layout, Segment, finest_step


def layout_for(bounds: Iterable[tuple[str, int, int, float]], parties: int) -> Layout:
    """Return the layout with the finest steps that cannot wrap.

    Parameters
    ----------
    bounds : iterable of (name, length, bits, bound)
        Segments in order.
    parties : int
        Largest number of summands, the size of the roster.
    """
    return Layout(
        tuple(
            Segment(name, length, bits, bound, finest_step(bound, parties, bits))
            for name, length, bits, bound in bounds
        ),
        parties,
    )
