"""Order of waiting sequences."""

from sequences import make_sequence

from server.engine.waiting import WaitingQueue


def queue_of(*priorities):
    queue = WaitingQueue()
    for index, priority in enumerate(priorities):
        queue.append(make_sequence(request_id=str(index), priority=priority))
    return queue


def drain(queue):
    order = []
    while queue:
        order.append(queue.head.id)
        queue.pop(queue.head)
    return order


def test_equals_go_in_order_of_arrival():
    assert drain(queue_of(0, 0, 0)) == ["0", "1", "2"]


def test_higher_priorities_go_first():
    assert drain(queue_of(0, 2, 1, 2, -1)) == ["1", "3", "2", "0", "4"]


def test_a_later_one_can_become_the_head_of_a_known_queue():
    queue = queue_of(0, 0)
    assert queue.head.id == "0"
    queue.append(make_sequence(request_id="2", priority=1))
    assert queue.head.id == "2"
    queue.remove(queue.head)
    assert queue.head.id == "0"


def test_what_is_put_back_goes_before_its_equals():
    queue = queue_of(0, 1)
    queue.put_back(make_sequence(request_id="back"))
    assert drain(queue) == ["1", "back", "0"]


def test_tokens_are_counted():
    queue = queue_of(0, 0)
    assert queue.num_tokens == 6
    queue.pop(queue.head)
    assert queue.num_tokens == 3
