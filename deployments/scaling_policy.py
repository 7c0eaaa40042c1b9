"""How many worker replicas there should be, as Ray Serve's controller asks it many times a second.

Owns the way from the controller to the Hub, where the decision is made (``scaling_keeper``), and
back. The controller's loop must never wait, so a call is sent, and its answer taken when it is
there; until then, and where there is no Hub, the number stays as it is. No request passes through
Serve here, so what it counts by itself is always 0.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import ray

from chairlift.cluster.autoscaling import ScalingPolicy
from chairlift.cluster.scaling import Fleet, Scaling
from chairlift.deployments.hub_name import HUB, NAMESPACE

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

__all__ = ["HubPolicy", "OngoingRequests"]

logger = logging.getLogger(__name__)

ASK_S = 0.5
"""Between two questions; routers report every second."""
FIND_S = 2.0
"""Between two looks for the Hub, each of which is a short call to Ray's head node."""
ANSWER_S = 10.0
"""After which an answer is not waited for any more, and one that came is too old."""


class _HubLine:
    """Asks the Hub and hears it, without ever waiting for it."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self._hub: ray.actor.ActorHandle | None = None
        self._looked_at = self._asked_at = self._heard_at = float("-inf")
        self._answer: ray.ObjectRef | None = None
        self._scaling: Scaling | None = None

    def newest(self, context: AutoscalingContext) -> Scaling | None:
        """The newest decision, if it is of now."""
        now = time.monotonic()
        self._hear(now)
        self._ask(context, now)
        return self._scaling if now - self._heard_at <= ANSWER_S else None

    def _hear(self, now: float) -> None:
        if self._answer is None:
            return
        there, _ = ray.wait([self._answer], timeout=0)
        if there:
            self._answer = None
            try:
                self._scaling, self._heard_at = ray.get(there[0]), now
            except Exception as error:  # whatever ails the Hub, replicas stay as they are
                logger.warning("the Hub does not say how many replicas there should be: %r", error)
                self._hub = None
        elif now - self._asked_at > ANSWER_S:
            self._answer = self._hub = None

    def _ask(self, context: AutoscalingContext, now: float) -> None:
        if self._answer is not None or now - self._asked_at < ASK_S:
            return
        ready, target = context.current_num_replicas, context.target_num_replicas
        fleet = Fleet(self._policy, target, ready, self._scaling)
        try:
            if self._hub is None and now - self._looked_at >= FIND_S:
                self._looked_at = now
                self._hub = ray.get_actor(HUB, NAMESPACE)
            if self._hub is not None:
                self._answer, self._asked_at = self._hub.scale.remote(fleet), now
        except ValueError:
            pass  # routers have yet to make it
        except Exception as error:  # the controller has more to do than this
            logger.warning("the Hub cannot be asked: %r", error)
            self._hub = None


class HubPolicy:
    """Chairlift's policy; made once by the controller, with the policy's fields."""

    def __init__(self, **policy: Any) -> None:
        self._hub = _HubLine(ScalingPolicy(**policy))

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """Called in the controller's loop."""
        scaling = self._hub.newest(context)
        desired = context.target_num_replicas if scaling is None else scaling.decision.desired
        return desired, {}


class OngoingRequests:
    """Serve's own rule, for comparison: it is told of requests what it would see if they were its.

    Running and waiting ones, in the mean over the look-back period; bounds and delays are Serve's.
    """

    def __init__(self, **policy: Any) -> None:
        self._hub = _HubLine(ScalingPolicy(**policy))
        self._ongoing: deque[tuple[float, int]] = deque()

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """Called in the controller's loop."""
        from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy

        scaling, now = self._hub.newest(context), time.monotonic()
        if scaling is None:
            return context.target_num_replicas, {}
        self._ongoing.append((now, scaling.reading.running + scaling.reading.waiting))
        while self._ongoing[0][0] < now - context.config.look_back_period_s:
            self._ongoing.popleft()
        mean = sum(ongoing for _, ongoing in self._ongoing) / len(self._ongoing)
        context.__dict__["total_num_requests"] = mean  # as Serve holds what it has added up
        asked: tuple[float, dict[str, Any]] = replica_queue_length_autoscaling_policy(context)
        return asked
