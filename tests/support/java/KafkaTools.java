import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;

/**
 * Kafka's command line tools in one process, because each would take seconds to start.
 *
 * Reads lines "main class TAB argument TAB argument ..." from standard input, and answers each with a line: the status
 * with which the tool ends, a space, and what it has written, in base64.
 */
public final class KafkaTools {
    private static final class Ended extends RuntimeException {}

    private static int first; // status with which the tool has ended; -1 if it has not

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        ByteArrayOutputStream written = new ByteArrayOutputStream();
        PrintStream into = new PrintStream(written, true, "UTF-8"); // one for all: Scala remembers the first
        System.setOut(into);
        System.setErr(into);
        doNotExit();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            written.reset();
            first = -1;
            int status = run(parts[0], Arrays.copyOfRange(parts, 1, parts.length), into);
            into.flush();
            answers.println(status + " " + Base64.getEncoder().encodeToString(written.toByteArray()));
            answers.flush();
        }
    }

    /** Note the status where a tool ends this process; what does that has moved with Kafka 4.4. */
    private static void doNotExit() throws ReflectiveOperationException {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException older) {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        }
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object end = Proxy.newProxyInstance(exit.getClassLoader(), new Class<?>[] {procedure}, (self, method, arguments) -> {
            first = first < 0 ? (Integer) arguments[0] : first; // tools catch what is thrown here, and end again
            throw new Ended();
        });
        exit.getMethod("setExitProcedure", procedure).invoke(null, end);
        exit.getMethod("setHaltProcedure", procedure).invoke(null, end);
    }

    private static int run(String tool, String[] arguments, PrintStream into) {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return Math.max(first, 0);
        } catch (ReflectiveOperationException wrapped) {
            if (first < 0) {
                wrapped.printStackTrace(into);
            }
            return first < 0 ? 1 : first;
        }
    }
}
