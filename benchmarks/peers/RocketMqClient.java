import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.Scanner;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.function.IntConsumer;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's side of the benchmarks: a transactional producer and a push consumer in one process, with one clock.
 *
 * <p>Reads commands from standard input, one a line, and answers each with one line of JSON after the word "result"; it
 * ends when its input ends. Times are nanoseconds of the machine's monotonic clock, which other processes share.
 */
public final class RocketMqClient {
    private static final String TOPIC = "peer";
    private static final int QUEUES = 8;
    private static final int ROWS = 10_000;
    private static final long LONGEST_NS = 240_000_000_000L;
    private static final long QUIET_NS = 3_000_000_000L;
    private static final String UPDATE = "UPDATE stock SET count = count + 1 WHERE id = ?";
    private static final String REMEMBER = "INSERT INTO rocketmq_transaction (id) VALUES (?)";

    /** Local transactions that were committed, by RocketMQ's transaction id: a check-back is answered from memory. */
    private final Map<String, Boolean> committed = new ConcurrentHashMap<>();

    private final TransactionMQProducer producer = new TransactionMQProducer("peer-producer");
    private final DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("peer-consumer");
    private final String database;
    private final ThreadLocal<Local> local = new ThreadLocal<>();
    private volatile Run run = new Run(0, 1);

    private RocketMqClient(String nameServer, String database) {
        this.database = database;
        producer.setNamesrvAddr(nameServer);
        consumer.setNamesrvAddr(nameServer);
    }

    /** Samples of one run; messages of other runs are left aside. */
    private static final class Run {
        final int id;
        final int count;
        final AtomicLongArray sent;
        final AtomicLongArray ended;
        final AtomicLongArray arrived;
        final AtomicInteger distinct = new AtomicInteger();
        final AtomicInteger arrivals = new AtomicInteger();
        final AtomicInteger refused = new AtomicInteger();
        final AtomicInteger rolledBack = new AtomicInteger();
        final AtomicLong lastArrival = new AtomicLong();

        Run(int id, int count) {
            this.id = id;
            this.count = count;
            sent = new AtomicLongArray(count);
            ended = new AtomicLongArray(count);
            arrived = new AtomicLongArray(count);
        }

        void arrive(int number, long now) {
            arrivals.incrementAndGet();
            if (arrived.compareAndSet(number, 0, now)) {
                lastArrival.accumulateAndGet(now, Math::max);
                distinct.incrementAndGet();
            }
        }

        LongStream arrivedTimes() {
            return LongStream.range(0, count).map(number -> arrived.get((int) number)).filter(at -> at != 0);
        }
    }

    /** What happens inside a local transaction. */
    private enum Kind { NOTHING, DATABASE, UNKNOWN }

    private record Local(Connection connection, PreparedStatement update, PreparedStatement remember) { }

    private record Task(Run run, int number, Kind kind) { }

    private Local connect() {
        try {
            Connection connection = DriverManager.getConnection(database);
            connection.setAutoCommit(false);
            return new Local(connection, connection.prepareStatement(UPDATE), connection.prepareStatement(REMEMBER));
        } catch (SQLException error) {
            throw new IllegalStateException(error);
        }
    }

    private void start() throws Exception {
        producer.setSendMsgTimeout(5_000);
        producer.setTransactionListener(new Listener());
        producer.start();
        createTopic();
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            Run current = run;
            for (MessageExt message : messages) {
                String[] parts = message.getKeys().split(":");
                if (Integer.parseInt(parts[0]) == current.id) {
                    current.arrive(Integer.parseInt(parts[1]), now);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    /** The broker has told the name server of itself only some time after its start. */
    private void createTopic() throws Exception {
        long end = System.nanoTime() + 30_000_000_000L;
        while (true) {
            try {
                producer.createTopic("TBW102", TOPIC, QUEUES, Map.of());
                return;
            } catch (MQClientException error) {
                if (System.nanoTime() > end) {
                    throw error;
                }
                Thread.sleep(200);
            }
        }
    }

    private final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            Task task = (Task) argument;
            if (task.kind == Kind.DATABASE && !commitLocally(task.number, message.getTransactionId())) {
                task.run.rolledBack.incrementAndGet();
                return LocalTransactionState.ROLLBACK_MESSAGE;
            }
            committed.put(message.getTransactionId(), true);
            if (task.kind == Kind.UNKNOWN) {
                return LocalTransactionState.UNKNOW;
            }
            task.run.ended.set(task.number, System.nanoTime());
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            boolean known = committed.containsKey(message.getTransactionId());
            return known ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }
    }

    /** A business row, and the row from which a check-back would be answered unless the transaction has no message. */
    private boolean commitLocally(int number, String transaction) {
        if (local.get() == null) {
            local.set(connect());
        }
        Local mine = local.get();
        try {
            mine.update.setInt(1, number % ROWS);
            mine.update.executeUpdate();
            if (transaction != null) {
                mine.remember.setString(1, transaction);
                mine.remember.executeUpdate();
            }
            mine.connection.commit();
            return true;
        } catch (SQLException error) {
            System.err.println(error);
            rollBack(mine.connection);
            return false;
        }
    }

    private static void rollBack(Connection connection) {
        try {
            connection.rollback();
        } catch (SQLException error) {
            System.err.println(error);
        }
    }

    private void send(Run current, int number, byte[] body, Kind kind) {
        Message message = new Message(TOPIC, "", current.id + ":" + number, body);
        while (true) {
            long began = System.nanoTime();
            try {
                TransactionSendResult result = producer.sendMessageInTransaction(message, new Task(current, number, kind));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    current.sent.set(number, began);
                    return;
                }
            } catch (MQClientException | RuntimeException error) {
                message = new Message(TOPIC, "", current.id + ":" + number, body);
            }
            current.refused.incrementAndGet();
            pause(100_000_000L);
        }
    }

    /** Every thread takes each so many numbers, from its own on; seconds until all were done. */
    private double inThreads(int threads, int count, IntConsumer each) throws InterruptedException, ExecutionException {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<?>> running = new ArrayList<>();
        long began = System.nanoTime();
        for (int thread = 0; thread < threads; thread++) {
            int first = thread;
            running.add(pool.submit(() -> {
                try {
                    for (int number = first; number < count; number += threads) {
                        each.accept(number);
                    }
                } finally {
                    closeConnection();
                }
            }));
        }
        for (Future<?> one : running) {
            one.get();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        pool.shutdown();
        if (run.rolledBack.get() > 0) {
            throw new IllegalStateException(run.rolledBack.get() + " local transactions were rolled back");
        }
        return seconds;
    }

    private void closeConnection() {
        if (local.get() == null) {
            return;
        }
        try {
            local.get().connection.close();
        } catch (SQLException error) {
            System.err.println(error);
        }
        local.remove();
    }

    /** COMMIT returned → consumed, at a steady rate. */
    private String steady(int rate, int count, byte[] body, int threads) throws Exception {
        Run current = begin(count);
        long began = System.nanoTime();
        double seconds = inThreads(threads, count, number -> {
            pause(began + number * 1_000_000_000L / rate - System.nanoTime());
            send(current, number, body, Kind.DATABASE);
        });
        await(current);
        pause(QUIET_NS);
        String samples = LongStream.range(0, count)
            .filter(number -> current.arrived.get((int) number) != 0)
            .mapToObj(number -> {
                int place = (int) number;
                return String.valueOf((current.arrived.get(place) - current.ended.get(place)) / 1e6);
            })
            .collect(Collectors.joining(","));
        return counts(current, String.format(", \"per_second\": %f, \"milliseconds\": [%s]", count / seconds, samples));
    }

    /** Local transactions, with a message each or without; all messages have arrived when the answer is given. */
    private String transactions(int threads, int count, byte[] body, boolean messaging) throws Exception {
        Run current = begin(count);
        long[] taken = new long[count];
        double seconds = inThreads(threads, count, number -> {
            long began = System.nanoTime();
            if (messaging) {
                send(current, number, body, Kind.DATABASE);
            } else if (!commitLocally(number, null)) {
                current.rolledBack.incrementAndGet();
            }
            taken[number] = System.nanoTime() - began;
        });
        if (messaging) {
            await(current);
        }
        Arrays.sort(taken);
        return counts(current, String.format(
            ", \"per_second\": %f, \"p50_ms\": %f, \"p99_ms\": %f",
            count / seconds, taken[count / 2] / 1e6, taken[count * 99 / 100] / 1e6));
    }

    /** Messages whose local transaction says nothing, until check-backs have decided all of them. */
    private String undecided(int count, byte[] body, int threads) throws Exception {
        Run current = begin(count);
        long began = System.nanoTime();
        inThreads(threads, count, number -> send(current, number, body, Kind.UNKNOWN));
        long sent = System.nanoTime();
        await(current);
        pause(QUIET_NS);
        return counts(current, String.format(", \"began\": %d, \"sent\": %d", began, sent));
    }

    /** Messages without a database, sent again until they are taken: the broker is killed half way. */
    private String throughDeath(int count, byte[] body, int threads) throws Exception {
        Run current = begin(count);
        Thread halfWay = new Thread(() -> {
            while (current.distinct.get() < count / 2) {
                pause(1_000_000L);
            }
            answer("half", "{}");
        });
        halfWay.setDaemon(true);
        halfWay.start();
        inThreads(threads, count, number -> send(current, number, body, Kind.NOTHING));
        await(current);
        pause(QUIET_NS);
        return counts(current, String.format(", \"refused\": %d", current.refused.get()));
    }

    /** When the first message was consumed that was sent after a time. */
    private String firstAfter(long time) {
        Run current = run;
        long first = LongStream.range(0, current.count)
            .filter(number -> current.sent.get((int) number) > time && current.arrived.get((int) number) != 0)
            .map(number -> current.arrived.get((int) number))
            .min().orElse(0);
        return String.format("{\"at\": %d}", first);
    }

    private Run begin(int count) {
        committed.clear();
        run = new Run(run.id + 1, count);
        return run;
    }

    /** Until all have arrived; whoever counts doubles waits a while longer. */
    private static void await(Run current) {
        long end = System.nanoTime() + LONGEST_NS;
        while (current.distinct.get() < current.count && System.nanoTime() < end) {
            pause(2_000_000L);
        }
    }

    private static String counts(Run current, String more) {
        return String.format(
            "{\"distinct\": %d, \"arrivals\": %d, \"first\": %d, \"last\": %d%s}",
            current.distinct.get(), current.arrivals.get(), current.arrivedTimes().min().orElse(0),
            current.lastArrival.get(), more);
    }

    private static void pause(long nanoseconds) {
        if (nanoseconds <= 0) {
            return;
        }
        try {
            Thread.sleep(nanoseconds / 1_000_000, (int) (nanoseconds % 1_000_000));
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static synchronized void answer(String word, String json) {
        System.out.println(word + " " + json);
        System.out.flush();
    }

    private String obey(String[] words) throws Exception {
        int[] numbers = Arrays.stream(words).skip(1).mapToInt(word -> (int) Long.parseLong(word)).toArray();
        return switch (words[0]) {
            case "steady" -> steady(numbers[0], numbers[1], body(numbers[2]), numbers[3]);
            case "transactions" -> transactions(numbers[0], numbers[1], body(numbers[2]), numbers[3] == 1);
            case "undecided" -> undecided(numbers[0], body(numbers[1]), numbers[2]);
            case "death" -> throughDeath(numbers[0], body(numbers[1]), numbers[2]);
            case "first-after" -> firstAfter(Long.parseLong(words[1]));
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    private static byte[] body(int size) {
        byte[] bytes = new byte[size];
        new Random(0).nextBytes(bytes);
        return bytes;
    }

    /** Arguments: the name server's address, and the database's JDBC address. */
    public static void main(String[] arguments) throws Exception {
        Locale.setDefault(Locale.ROOT); // of numbers in the answers
        LinkedBlockingQueue<String> commands = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> {
            Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8);
            while (lines.hasNextLine()) {
                commands.add(lines.nextLine());
            }
            Runtime.getRuntime().halt(0); // whoever gave the commands is gone
        });
        reader.setDaemon(true);
        reader.start();
        RocketMqClient client = new RocketMqClient(arguments[0], arguments[1]);
        client.start();
        answer("result", "{}");
        try {
            while (true) {
                answer("result", client.obey(commands.take().split(" ")));
            }
        } catch (Exception error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // threads of producer and consumer would keep the process
        }
    }
}
